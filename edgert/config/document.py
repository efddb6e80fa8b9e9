"""YAML text → plain data that remembers, for every key, the line it was written on."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edgert.config.substitution import Loc, Variables, override
from edgert.errors import ConfigError, cause, nearest
from edgert.installation import pipeline_names

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEPTH = 32
_VALUES = 100_000
"""Far more than a pipeline needs; a small file whose aliases multiply, or point at themselves, is stopped here."""
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str"))
_TIMESTAMP = f"{_TAG}timestamp"
_MERGE = f"{_TAG}merge"
_NO_KEYS = "it holds no keys at its top level"
_STARTER = "edgert new MODEL.onnx writes a starter"
_NO_BUNDLE = "name a YAML file; a bundle can be run, inspected, exported, raced (bench) and finished (build)"


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data read from a file, and where each part of it stands.

    Attributes:
        path: the file.
        data: nested dicts, lists and scalars, environment variables filled in; not for printing.
        places: key path → ``file:line`` or ``--set key=value``.
        written: key path → the text before ``${VAR}`` was filled in; what errors may print.
        variables: knows what came from the environment.
    """

    path: Path
    data: dict[str, Any] = field(repr=False)
    places: Mapping[Loc, str] = field(repr=False)
    written: Mapping[Loc, str] = field(repr=False)
    variables: Variables = field(repr=False)

    def where(self, loc: Iterable[str | int]) -> str:
        """``file:line a.b.c`` of a key path, or of the nearest enclosing key that was written."""
        loc = tuple(loc)
        known = next((loc[:n] for n in range(len(loc), -1, -1) if loc[:n] in self.places), ())
        return _at(str(self.places.get(known, self.path)), loc)


def read(path: str | Path, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None) -> Document:
    """Reads a pipeline file.

    Args:
        path: a YAML file.
        overrides: ``key.path=value`` strings; the value is YAML too.
        env: variables for ``${NAME}`` and ``${NAME:-default}``; the process environment when None.

    Raises:
        ConfigError: no such file, not YAML, a key twice, an unset variable, a malformed override.
    """
    path = Path(path)
    node = _compose(_read_text(path), str(path))
    if node is None:
        raise ConfigError(f"{path} is empty", fix=_STARTER)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path} is not a pipeline file", why=_NO_KEYS, where=f"{path}:1", fix=_STARTER)
    builder = _Builder(str(path), Variables(os.environ if env is None else env))
    data = builder.build(node, ())
    for text in overrides:
        override(data, text, builder.parse, builder.note)
    return Document(path, data, builder.places, builder.written, builder.variables)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _absent(path) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not a pipeline file",
            why=f"byte {error.start} is no UTF-8 text",
            fix=f"edgert new {path} writes one for this model" if path.suffix == ".onnx" else _NO_BUNDLE,
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=cause(error), fix="name a YAML file") from error


def _absent(path: Path) -> ConfigError:
    """A name that is not there may be a slip of one that is: a file beside it, or a shipped pipeline."""
    shipped = pipeline_names()
    beside = [file.name for file in path.parent.glob("*.y*ml")]
    hint = nearest(path.name, [*beside, *(shipped if path.name == str(path) else ())])
    return ConfigError(f"no such file: {path}{hint}", fix=f"{_STARTER}; shipped: {', '.join(shipped)}")


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        _check_depth(text, name)
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{name} is not valid YAML", why=str(error.problem), where=f"{name}{line}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML", why=str(error), where=name) from error


def _check_depth(text: str, name: str) -> None:
    """LibYAML builds nodes recursively and would overflow the C stack; it makes events one by one."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            mark = event.start_mark
            raise _too_deep(f"{name}:{mark.line + 1}" if mark else name)


class _Builder:
    """Turns YAML nodes into data, noting places and filling in variables."""

    def __init__(self, name: str, variables: Variables) -> None:
        self.name, self.variables = name, variables
        self.places: dict[Loc, str] = {}
        self.written: dict[Loc, str] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self._override: str | None = None
        self._values = 0

    def parse(self, text: str, loc: Loc, place: str) -> Any:
        """The data of an override's value. Forgets what was known of the key it replaces."""
        for known in (self.places, self.written):
            for old in [old for old in known if old[: len(loc)] == loc]:
                del known[old]
        self._override = place
        node = _compose(text, place)
        self.note(loc, place)
        return None if node is None else self.build(node, loc)

    def note(self, loc: Loc, place: str) -> None:
        """Remembers where a key was written."""
        self.places[loc] = place

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        """The data of a node, aliases followed."""
        place = self._place(node)
        self._values += 1
        if len(loc) > _DEPTH:
            raise _too_deep(place)
        if self._values > _VALUES:
            raise ConfigError(f"{self.name} expands to too many values", why="aliases repeat aliases", where=place)
        self.places.setdefault(loc, place)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return {key: self.build(child, (*loc, key)) for key, child in self._noted_pairs(node, loc)}
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(child, (*loc, n)) for n, child in enumerate(node.value)]
        return self._scalar(node, loc, place)

    def _place(self, node: yaml.Node) -> str:
        return self._override or f"{self.name}:{node.start_mark.line + 1}"

    def _noted_pairs(self, node: yaml.MappingNode, loc: Loc) -> Iterable[tuple[str, yaml.Node]]:
        for key, (key_node, child) in self._pairs(node, loc).items():
            self.note((*loc, key), self._place(key_node))
            yield key, child

    def _pairs(self, node: yaml.MappingNode, loc: Loc, depth: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key → its node and its value's; keys merged in by ``<<`` come first and give way to the mapping's own."""
        if depth > _DEPTH:
            raise _too_deep(self._place(node))
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, child in node.value:
            if key_node.tag == _MERGE:
                merged = {**self._merged(child, loc, depth), **merged}
                continue
            key = self._key(key_node)
            if key in own:
                first = own[key][0].start_mark.line + 1
                raise ConfigError(
                    f"{key!r} stands twice",
                    why=f"first on line {first}; the second would silently replace it",
                    where=_at(self._place(key_node), (*loc, key)),
                    fix="rename or remove one of them",
                )
            own[key] = (key_node, child)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, loc: Loc, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """What ``<<`` brings in: a mapping, or several, of which the earlier wins (https://yaml.org/type/merge.html)."""
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            self._values += 1
            if not isinstance(part, yaml.MappingNode) or self._values > _VALUES:
                raise ConfigError("<< takes a mapping, or a list of mappings", where=self._place(node))
            found = {**self._pairs(part, loc, depth + 1), **found}
        return found

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError("a key must be a word, not a list or mapping", where=self._place(node))
        return str(node.value)

    def _scalar(self, node: yaml.Node, loc: Loc, place: str) -> Any:
        if node.tag == _TIMESTAMP:  # 2024-05-01 is a name here, not a date
            return str(node.value)
        if node.tag not in _SCALARS:
            tag = node.tag.replace(_TAG, "!!")
            raise ConfigError(f"a pipeline file cannot hold {tag}", where=_at(place, loc), fix="remove the tag")
        try:
            value = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError, KeyError, OverflowError) as error:
            raise ConfigError(
                f"{node.tag.replace(_TAG, '')} expected", why=str(error), where=_at(place, loc)
            ) from error
        return self._filled(value, loc, place) if isinstance(value, str) else value

    def _filled(self, text: str, loc: Loc, place: str) -> str:
        filled = self.variables.fill(text, _at(place, loc))
        if filled != text:
            self.written[loc] = text
        return filled


def _too_deep(place: str) -> ConfigError:
    return ConfigError(
        "nested too deeply",
        why=f"a pipeline file needs fewer than {_DEPTH} levels; an alias may hold itself",
        where=place,
    )


def _at(place: str, loc: Iterable[str | int]) -> str:
    """``file:line a.b.c``; of ``--set a.b.c`` the path is there already, and that of a section it made."""
    path = _dotted(loc)
    return place if f"{place}.".startswith(f"--set {path}.") else f"{place} {path}".rstrip()


def _dotted(loc: Iterable[str | int]) -> str:
    return ".".join(map(str, loc))
