"""The overlay of a pipeline file: ``belt.live.yaml``, which is loaded after ``belt.yaml`` and holds what differs.

Mappings are merged key by key. A key without a value takes a key of the file away. Every other value replaces the
file's. ``edgert ctl save`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert import yaml_nodes
from edgert.errors import ConfigError

_ENDING = ".live"


def overlay_of(path: Path) -> Path:
    """Return the path of the overlay of a pipeline file, whether there is one or not."""
    return path.with_name(f"{path.stem}{_ENDING}.yaml")


def refuse_overlay(path: Path) -> None:
    """Raise ConfigError where a path is that of an overlay, which is no pipeline alone."""
    if path.stem.endswith(_ENDING):
        for suffix in (path.suffix, ".yml"):
            file = path.with_name(path.stem.removesuffix(_ENDING) + suffix)
            if file.is_file():
                what, why = f"{path} is no pipeline file", f"it holds what differs from {file.name}"
                raise ConfigError(what, why=why, fix=f"name {file}, after which it is loaded")


def merged(data: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file with an overlay's on top; both stay as they are."""
    found = dict(data)
    for key, value in overlay.items():
        if value is None and key in found:
            del found[key]
        elif isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return found


def differences(data: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overlay that makes ``wanted`` of a file's keys; empty where they are equal."""
    found: dict[str, Any] = {key: None for key in data if key not in wanted}
    for key, value in wanted.items():
        before = data.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inside := differences(before, value):
                found[key] = inside
        elif key not in data or type(before) is not type(value) or before != value:
            found[key] = value
    return found


def keys_of(overlay: Mapping[str, Any], data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the path of each value that an overlay adds to a file's keys, replaces or takes away."""
    found = []
    for key, value in overlay.items():
        before = data.get(key)
        inside = [()] if not (isinstance(value, Mapping) and isinstance(before, Mapping)) else keys_of(value, before)
        found += [(key, *rest) for rest in inside]
    return found


def without(overlay: Mapping[str, Any], loc: tuple[str, ...]) -> dict[str, Any]:
    """Return an overlay without one of its values, nor a section that is empty then."""
    key, *rest = loc
    inside = without(overlay[key], tuple(rest)) if rest else {}
    return {one: inside if one == key else value for one, value in overlay.items() if one != key or inside}


def text_of(data: Mapping[str, Any], written: Mapping[tuple[str | int, ...], str]) -> str:
    """Return keys of a document as YAML, with ``${NAME}`` where they were ``written`` so."""
    return yaml_nodes.dumped(as_written(data, written))


def as_written(data: Any, written: Mapping[tuple[str | int, ...], str], loc: tuple[str | int, ...] = ()) -> Any:
    """Return a copy of a document's keys, with ``${NAME}`` where they were ``written`` so."""
    if isinstance(data, Mapping):
        return {key: as_written(one, written, (*loc, key)) for key, one in data.items()}
    if isinstance(data, list):
        return [as_written(one, written, (*loc, number)) for number, one in enumerate(data)]
    return written.get(loc, data)
