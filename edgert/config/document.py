"""YAML text as plain data, with the line of every key.

``${NAME}`` is replaced by the environment variable, whose value is hidden in everything that is printed.
``--set key.path=value`` replaces or adds one key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from edgert import limits, yaml_nodes
from edgert.config.file_overlay import changed_keys, merge_overlay, overlay_path, refuse_overlay
from edgert.errors import ConfigError, cause, hide, nearest
from edgert.files import is_file
from edgert.installation import CHECKPOINTS, export_first, pipeline_names
from edgert.units import whole_number

_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_NAME_AND_DEFAULT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_TAG = "tag:yaml.org,2002:"
_SCALARS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str"))
_BYTE_TO_CHARACTER = {0xDC80 + byte: 0x10FE80 + byte for byte in range(128)}
"""Python's surrogates for non-UTF-8 bytes of a command line (PEP 383), to characters that YAML accepts."""
_CHARACTER_TO_BYTE = {character: byte for byte, character in _BYTE_TO_CHARACTER.items()}
_MAPPING = "<mapping>"
_STARTER = "edgert new MODEL.onnx writes a starter"


Loc = tuple["str | int", ...]
"""Key path: the keys and list indices that lead to a value."""


def fill_in(text: str, env: Mapping[str, str], where: str) -> str:
    """Return ``text`` with ``${NAME}`` and ``${NAME:-default}`` replaced.

    From then on, values from the environment are hidden in everything that is printed.

    Raises ConfigError: a variable is unset or malformed.
    """

    def value(match: re.Match[str]) -> str:
        inside = _NAME_AND_DEFAULT.fullmatch(match[1])
        if inside is None or not match[2]:
            fix = "write ${NAME}, or ${NAME:-default} for a default"
            raise ConfigError(f"cannot understand {match[0]!r}", where=where, fix=fix)
        name, default = inside.groups()
        if (found := env.get(name)) is not None:
            hide(found, name)
            return found
        if default is None:
            fix = f"export {name}=..., or write ${{{name}:-default}}"
            raise ConfigError(f"environment variable {name} is not set", where=where, fix=fix, code="E103")
        return str(default)

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data read from a file, with the place of each part.

    Attributes:
        path: path of the file.
        data: nested dicts, lists and scalars, with environment variables filled in; not for printing.
        places: key path → ``file:line`` or ``--set key=value``.
        written: key path → the text before ``${VAR}`` was filled in, which errors may print.
        base: data without the overlay; None for a mapping.
        overlay: path of the overlay; None without one.
        overrides: ``key.path=value`` strings of the command line.
    """

    path: Path
    data: dict[str, Any] = field(repr=False)
    places: Mapping[Loc, str] = field(repr=False)
    written: Mapping[Loc, str] = field(repr=False)
    base: Mapping[str, Any] | None = field(default=None, repr=False)
    overlay: Path | None = None
    overrides: tuple[str, ...] = field(default=(), repr=False)

    @property
    def overlay_note(self) -> str:
        """Line for people on the overlay; empty without one."""
        if self.overlay is None:
            return ""
        return f"{self.overlay} is loaded after {self.path.name}; delete it to leave it out"

    def where(self, loc: Iterable[str | int]) -> str:
        """Return ``file:line a.b.c`` of a key path; the line is that of the nearest enclosing key in the file."""
        loc = tuple(loc)
        known = next((loc[:n] for n in range(len(loc), -1, -1) if loc[:n] in self.places), ())
        return _with_path(str(self.places.get(known, self.path)), loc)


def read_document(
    path: str | Path,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    has_overlay: bool = True,
) -> Document:
    """Read a pipeline file, and its overlay (:mod:`edgert.config.file_overlay`) where there is one.

    Args:
        path: path of a YAML file.
        overrides: ``key.path=value`` strings, whose values are YAML.
        env: variables for ``${NAME}`` and ``${NAME:-default}``; the process environment when None.
        has_overlay: whether the file's overlay is loaded after it.

    Raises:
        ConfigError: the file is missing or not YAML, a key is written twice, a variable is unset, or an override is
            malformed.
    """
    path, overrides = Path(path), tuple(overrides)
    refuse_overlay(path)
    return parse_document(_read_text(path), path, overrides, env, has_overlay=has_overlay)


def parse_document(
    text: str,
    path: Path,
    overrides: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    *,
    has_overlay: bool = True,
    name: str = "",
) -> Document:
    """Parse a text in the place of a pipeline file; see :func:`read_document`.

    Errors call it ``name``, which is the path by default.
    """
    env = os.environ if env is None else env
    builder, overlay = _Builder(name or str(path), env), overlay_path(path) if has_overlay else None
    data = _parse_mapping(builder, text, _STARTER)
    base = deepcopy(data)
    if overlay is not None and is_file(overlay):
        above = _Builder(str(overlay), env)
        own = _parse_mapping(above, _read_text(overlay), f"delete it, and {path.name} alone holds")
        builder.take_places(changed_keys(own, data), above)
        data = merge_overlay(data, own)
    else:
        overlay = None
    data = deepcopy(data)
    for override in overrides:
        _Builder(str(path), env).override(base, override)
        builder.override(data, override)
    return Document(path, data, builder.places, builder.written, base, overlay, overrides)


def _parse_mapping(builder: _Builder, text: str, fix: str) -> dict[str, Any]:
    node = _compose(text, builder.name, fix)
    if node is None:
        raise ConfigError(f"{builder.name} is empty", fix=fix)
    if not isinstance(node, yaml.MappingNode):
        what, why = f"{builder.name} is not a pipeline file", "its top level is not a mapping of keys"
        raise ConfigError(what, why=why, where=f"{builder.name}:1", fix=fix)
    data: dict[str, Any] = builder.build(node, ())
    return data


def mapping_document(
    mapping: Mapping[str, Any], overrides: Iterable[str] = (), env: Mapping[str, str] | None = None
) -> Document:
    """Return the document of a pipeline that a program gives as a mapping instead of a file.

    Tuples become lists, and paths become texts.

    Raises ConfigError: a key is not a text, a value has a type that YAML lacks, or as in :func:`read_document`.
    """
    builder = _Builder(_MAPPING, os.environ if env is None else env)
    data = builder.copy(mapping, ())
    for text in overrides:
        builder.override(data, text)
    return Document(Path(_MAPPING), data, builder.places, builder.written)


def changed_document(document: Document, data: dict[str, Any], overrides: Iterable[str] = ()) -> Document:
    """Return a document with other data and overrides on top; ``${NAME}`` in the data is not filled in again."""
    builder = _Builder(str(document.path), {})
    builder.places.update(document.places)
    builder.written.update(document.written)
    for text in overrides:
        builder.override(data, text)
    return replace(document, data=data, places=builder.places, written=builder.written)


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(limits.YAML_CHARACTERS + 1)  # its size is not asked for: that of a device is 0
    except FileNotFoundError as error:  # perhaps a typo in the name of a file beside it, or of a shipped pipeline
        shipped = pipeline_names()
        beside = [file.name for file in path.parent.glob("*.y*ml")]
        hint = nearest(path.name, [*beside, *(shipped if path.name == str(path) else ())])
        fix = f"{_STARTER}; shipped: {', '.join(shipped)}"
        raise ConfigError(f"no such file: {path}{hint}", fix=fix, code="E104") from error
    except UnicodeDecodeError as error:
        fix = "name a YAML file; a bundle can be run, inspected, exported, raced (bench) and finished (build)"
        if path.suffix in CHECKPOINTS:
            fix = export_first(str(path))
        if path.suffix == ".onnx":
            fix = f"edgert new {path} writes one for this model"
        why = f"byte {error.start} is not UTF-8 text"
        raise ConfigError(f"{path} is not a pipeline file", why=why, fix=fix) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=cause(error), fix="name a YAML file") from error
    if len(text) > limits.YAML_CHARACTERS:
        why = f"it has more than {limits.YAML_CHARACTERS:,} characters"
        raise ConfigError(f"{path} is not a pipeline file", why=why, fix="name a YAML file")
    return text


def _compose(text: str, name: str, noise_fix: str = "") -> yaml.Node | None:
    try:
        return yaml_nodes.compose(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        why, fix = yaml_nodes.explain_mistake(text, error)
        raise ConfigError(f"{name} is not valid YAML", why=why, where=f"{name}{line}", fix=fix, code="E102") from error
    except yaml.YAMLError as error:  # control characters, as a power cut may leave
        why = str(error).splitlines()[0]
        raise ConfigError(f"{name} is not valid YAML", why=why, where=name, fix=noise_fix, code="E102") from error


class _Builder:
    """A builder of plain data from YAML nodes, which records places and fills in variables."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name, self._env = name, env
        self.places: dict[Loc, str] = {}
        self.written: dict[Loc, str] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self._override: str | None = None
        self._decoding: dict[int, int] = {}
        self._values = 0

    def override(self, data: dict[str, Any], text: str) -> None:
        """Apply ``key.path=value`` to ``data`` in place.

        Entries of lists are numbered from 0. Missing sections are added. The places of what was there are removed.

        Raises:
            ConfigError: ``=`` is missing, the path leads through a plain value or to a list entry that does not exist,
                or the value is not YAML.
        """
        path, equals, value = text.partition("=")
        *above, last = path.strip().split(".")
        if not equals or not last or not all(above):
            fix = "write --set key.path=value, e.g. stages.camera.fps=15"
            raise ConfigError(f"cannot understand --set {text!r}", fix=fix)
        place = f"--set {path.strip()}"
        target: Any = data
        loc: Loc = ()
        for key in above:
            step = _key_or_index(target, key, loc, place)
            loc = (*loc, step)
            if isinstance(target, dict) and target.get(key) is None:
                target[key] = {}
                self.places[loc] = place
            target = target[step]
        step = _key_or_index(target, last, loc, place)
        loc = (*loc, step)
        for known in (self.places, self.written):
            self._forget(known, loc)
        self._override = place
        encoded = value.translate(_BYTE_TO_CHARACTER)
        self._decoding = {} if encoded == value else _CHARACTER_TO_BYTE
        node = _compose(encoded, place)
        self.places[loc] = place
        target[step] = None if node is None else self.build(node, loc)

    def take_places(self, locs: Iterable[Loc], other: _Builder) -> None:
        """Replace the places at and below these key paths by those of another builder."""
        for loc in locs:
            for known, own in ((self.places, other.places), (self.written, other.written)):
                self._forget(known, loc)
                known.update({one: found for one, found in own.items() if one[: len(loc)] == loc})

    @staticmethod
    def _forget(known: dict[Loc, str], loc: Loc) -> None:
        for old in [old for old in known if old[: len(loc)] == loc]:
            del known[old]

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        """Return the data of a node, with aliases resolved."""
        place = self._place(node)
        self._values += 1
        if len(loc) > limits.YAML_LEVELS:
            raise _too_deep(place)
        if self._values > limits.YAML_VALUES:
            raise ConfigError(f"{self.name} expands to too many values", why="aliases repeat aliases", where=place)
        self.places.setdefault(loc, place)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            pairs = self._pairs(node, loc)
            self.places.update({(*loc, key): self._place(key_node) for key, (key_node, _) in pairs.items()})
            return {key: self.build(child, (*loc, key)) for key, (_, child) in pairs.items()}
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(child, (*loc, n)) for n, child in enumerate(node.value)]
        return self._scalar(node, loc, place)

    def copy(self, value: Any, loc: Loc) -> Any:
        """Return a copy of a program's data in the form that :meth:`build` returns, with variables filled in."""
        self._values += 1
        if len(loc) > limits.YAML_LEVELS or self._values > limits.YAML_VALUES:
            raise _too_deep(self.name)
        self.places[loc] = self.name
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    why = "a key is a text"
                    raise ConfigError(f"cannot use {key!r} as a key", why=why, where=_with_path(self.name, loc))
            return {key: self.copy(one, (*loc, key)) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(one, (*loc, number)) for number, one in enumerate(value)]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            return self._filled(value, loc, self.name)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        why = "a pipeline holds texts, numbers, booleans, lists and mappings"
        raise ConfigError(f"cannot use {type(value).__name__}", why=why, where=_with_path(self.name, loc))

    def _place(self, node: yaml.Node) -> str:
        return self._override or f"{self.name}:{node.start_mark.line + 1}"

    def _pairs(self, node: yaml.MappingNode, loc: Loc, depth: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return key → its node and its value's node; a mapping's own keys replace those merged in by ``<<``."""
        if depth > limits.YAML_LEVELS:
            raise _too_deep(self._place(node))
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, child in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged = {**self._merged(child, loc, depth), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError("a key must be a word, not a list or mapping", where=self._place(key_node))
            key = str(key_node.value)
            if key in own:
                first = own[key][0].start_mark.line + 1
                raise ConfigError(
                    f"{key!r} is written twice",
                    why=f"first on line {first}; the second would silently replace it",
                    where=_with_path(self._place(key_node), (*loc, key)),
                    fix="rename or remove one of them",
                )
            own[key] = (key_node, child)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, loc: Loc, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return the keys that ``<<`` merges in; the earlier mapping wins (https://yaml.org/type/merge.html)."""
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            self._values += 1
            if not isinstance(part, yaml.MappingNode) or self._values > limits.YAML_VALUES:
                raise ConfigError("<< takes a mapping, or a list of mappings", where=self._place(node))
            found = {**self._pairs(part, loc, depth + 1), **found}
        return found

    def _scalar(self, node: yaml.Node, loc: Loc, place: str) -> Any:
        if node.tag == f"{_TAG}timestamp":  # 2024-05-01 is a name here, not a date
            return str(node.value)
        if node.tag not in _SCALARS:
            tag = node.tag.replace(_TAG, "!!")
            raise ConfigError(f"a pipeline file cannot hold {tag}", where=_with_path(place, loc), fix="remove the tag")
        try:
            value = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError, KeyError, OverflowError) as error:
            expected = f"{node.tag.replace(_TAG, '')} expected"
            raise ConfigError(expected, why=str(error), where=_with_path(place, loc)) from error
        if not isinstance(value, str):
            return value
        return self._filled(value.translate(self._decoding), loc, place)

    def _filled(self, value: str, loc: Loc, place: str) -> str:
        filled = fill_in(value, self._env, _with_path(place, loc))
        if filled != value:
            self.written[loc] = value
        return filled


def _too_deep(place: str) -> ConfigError:
    return ConfigError(
        "nested too deeply",
        why=f"at most {limits.YAML_LEVELS} levels are accepted; an alias may contain itself",
        where=place,
    )


def _with_path(place: str, loc: Iterable[str | int]) -> str:
    """Return a place with a key path, ``file:line a.b.c``; a ``--set a.b.c`` place has the path already."""
    path = ".".join(map(str, loc))
    return place if f"{place}.".startswith(f"--set {path}.") else f"{place} {path}".rstrip()


def _key_or_index(target: Any, key: str, loc: Loc, place: str) -> str | int:
    """Return a key of a mapping, or as an index of a list. Raises ConfigError: ``target`` has no such entry."""
    if isinstance(target, dict):
        return key
    above = ".".join(map(str, loc))
    if not isinstance(target, list):
        raise ConfigError(f"{place} names no key", why=f"{above} holds a plain value, not keys")
    number = whole_number(key)
    if number is None or number >= len(target):
        known = f"{above} has the entries 0 to {len(target) - 1}" if target else f"{above} is empty"
        raise ConfigError(f"{place} names no key", why=known, fix=f"or replace the whole list: --set '{above}=[...]'")
    return number
