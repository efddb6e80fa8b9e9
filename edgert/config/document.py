"""YAML text → plain data that remembers, for every key, the line it was written on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edgert.errors import ConfigError

Loc = tuple["str | int", ...]
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data read from a file, and where each part of it stands.

    Attributes:
        path: the file.
        data: nested dicts, lists and scalars, environment variables filled in.
        places: key path → ``file:line`` or ``--set key=value``.
        written: key path → the text before ``${VAR}`` was filled in; what errors may print.
    """

    path: Path
    data: dict[str, Any]
    places: Mapping[Loc, str]
    written: Mapping[Loc, str] = field(default_factory=dict)

    def where(self, loc: Iterable[str | int]) -> str:
        """``file:line a.b.c`` of a key path, or of the nearest enclosing key that was written."""
        loc = tuple(loc)
        known = next((loc[:n] for n in range(len(loc), -1, -1) if loc[:n] in self.places), ())
        return f"{self.places.get(known, self.path)} {'.'.join(map(str, loc))}".rstrip()


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
    builder = _Builder(path, os.environ if env is None else env)
    data = builder.build(_compose(path, _read_text(path)))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a pipeline file", why="it holds no keys at its top level", where=f"{path}:1")
    for override in overrides:
        _override(data, override, builder)
    return Document(path, data, builder.places, builder.written)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no such file: {path}", fix="edgert new MODEL.onnx writes a starter") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}", why=str(error)) from error


def _compose(path: Path, text: str) -> yaml.Node:
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path} is not valid YAML", why=str(error.problem), where=f"{path}{line}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML", why=str(error)) from error
    if node is None:
        raise ConfigError(f"{path} is empty", fix="edgert new MODEL.onnx writes a starter")
    return node


class _Builder:
    """Turns YAML nodes into data, noting lines and filling in variables."""

    def __init__(self, path: Path, env: Mapping[str, str]) -> None:
        self.path, self.env = path, env
        self.places: dict[Loc, str] = {}
        self.written: dict[Loc, str] = {}
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, loc: Loc = ()) -> Any:
        self.places[loc] = f"{self.path}:{node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*loc, n)) for n, child in enumerate(node.value)]
        return self._scalar(node, loc)

    def fill(self, text: str, loc: Loc) -> str:
        """``text`` with its ``${VAR}`` replaced; remembers the original for error messages."""

        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = self.env.get(name, default)
            if found is None:
                raise ConfigError(
                    f"environment variable {name} is not set",
                    where=f"{self.places[loc]} {'.'.join(map(str, loc))}",
                    fix=f"export {name}=..., or write ${{{name}:-default}}",
                )
            return found

        filled = _VARIABLE.sub(value, text)
        if filled != text:
            self.written[loc] = text
        return filled

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen and key != "<<":
                raise ConfigError(
                    f"{key!r} stands twice",
                    why=f"first on line {seen[key]}; the second would silently replace it",
                    where=f"{self.path}:{line} {'.'.join(map(str, (*loc, key)))}",
                    fix="rename or remove one of them",
                )
            seen[key] = line
        self._constructor.flatten_mapping(node)  # YAML's own `<<: *anchor`
        data = {}
        for key_node, child in node.value:
            key = str(key_node.value)
            data[key] = self.build(child, (*loc, key))
            self.places[(*loc, key)] = f"{self.path}:{key_node.start_mark.line + 1}"
        return data

    def _scalar(self, node: yaml.Node, loc: Loc) -> Any:
        value = _plain(self._constructor, node, self.places[loc])
        return self.fill(value, loc) if isinstance(value, str) else value


def _plain(constructor: yaml.constructor.SafeConstructor, node: yaml.Node, place: str) -> Any:
    try:
        return constructor.construct_object(node, deep=True)
    except yaml.YAMLError as error:
        why = getattr(error, "problem", None) or str(error)
        raise ConfigError("a value that plain YAML does not know", why=why, where=place) from error


def _override(data: dict[str, Any], override: str, builder: _Builder) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"cannot understand --set {override!r}", fix="write --set key.path=value, e.g. stages.camera.fps=15"
        )
    target: Any = data
    for depth, key in enumerate(keys[:-1]):
        target = _step(target, key, override) if _has(target, key) else _grow(target, key, keys[:depth], override)
    try:
        value = yaml.load(text, Loader=_Loader)  # a SafeLoader; see _Loader
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot understand --set {override!r}", why=str(error)) from error
    loc: Loc = tuple(int(key) if key.isdigit() else key for key in keys)
    builder.places[loc] = f"--set {path}"
    target[int(keys[-1]) if isinstance(target, list) else keys[-1]] = (
        builder.fill(value, loc) if isinstance(value, str) else value
    )


def _has(target: Any, key: str) -> bool:
    return key in target if isinstance(target, dict) else isinstance(target, list)


def _step(target: Any, key: str, override: str) -> Any:
    try:
        return target[int(key)] if isinstance(target, list) else target[key]
    except (ValueError, IndexError) as error:
        raise ConfigError(f"--set {override!r} goes nowhere", why=f"{key!r} is not an entry of that list") from error


def _grow(target: Any, key: str, above: list[str], override: str) -> Any:
    if not isinstance(target, dict):
        raise ConfigError(f"--set {override!r} goes nowhere", why=f"{'.'.join(above)} holds a plain value, not keys")
    return target.setdefault(key, {})
