"""The overlay of a pipeline file: ``belt.live.yaml``, which is loaded after ``belt.yaml`` and has what differs.

``edgert ctl save`` writes it. Mappings are merged key by key. A key without a value removes the file's key. Any other
value replaces the file's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgert import yaml_nodes
from edgert.errors import ConfigError
from edgert.files import is_file

_ENDING = ".live"


def overlay_path(path: Path) -> Path:
    """Return the path of a pipeline file's overlay, which may not exist."""
    return path.with_name(f"{path.stem}{_ENDING}.yaml")


def refuse_overlay(path: Path) -> None:
    """Check that a path is not that of an overlay. Raises ConfigError: it is, and is no pipeline without its file."""
    if path.stem.endswith(_ENDING):
        for suffix in (path.suffix, ".yml"):
            file = path.with_name(path.stem.removesuffix(_ENDING) + suffix)
            if is_file(file):
                what, why = f"{path} is not a pipeline file", f"it has only what differs from {file.name}"
                raise ConfigError(what, why=why, fix=f"name {file}; the overlay is loaded after it")


def merge_overlay(data: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's data with an overlay on top; neither is changed."""
    found = dict(data)
    for key, value in overlay.items():
        if value is None and key in found:
            del found[key]
        elif isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merge_overlay(found[key], value)
        else:
            found[key] = value
    return found


def differences(data: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overlay that turns a file's data into ``wanted``; empty where they are equal."""
    found: dict[str, Any] = {key: None for key in data if key not in wanted}
    for key, value in wanted.items():
        before = data.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inside := differences(before, value):
                found[key] = inside
        elif key not in data or type(before) is not type(value) or before != value:
            found[key] = value
    return found


def changed_keys(overlay: Mapping[str, Any], data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the key path of each value of a file's data that an overlay adds, replaces or removes."""
    found = []
    for key, value in overlay.items():
        before = data.get(key)
        inside = (
            [()] if not (isinstance(value, Mapping) and isinstance(before, Mapping)) else changed_keys(value, before)
        )
        found += [(key, *rest) for rest in inside]
    return found


def without_key(overlay: Mapping[str, Any], loc: tuple[str, ...]) -> dict[str, Any]:
    """Return an overlay without one of its values, and without sections that become empty."""
    key, *rest = loc
    inside = without_key(overlay[key], tuple(rest)) if rest else {}
    return {one: inside if one == key else value for one, value in overlay.items() if one != key or inside}


def to_yaml(data: Mapping[str, Any], written: Mapping[tuple[str | int, ...], str]) -> str:
    """Return a document's data as YAML, with ``${NAME}`` where the file has it; see :func:`as_written`."""
    return yaml_nodes.to_yaml(as_written(data, written))


def as_written(data: Any, written: Mapping[tuple[str | int, ...], str], loc: tuple[str | int, ...] = ()) -> Any:
    """Return a copy of a document's data, with ``${NAME}`` where the file has it."""
    if isinstance(data, Mapping):
        return {key: as_written(one, written, (*loc, key)) for key, one in data.items()}
    if isinstance(data, list):
        return [as_written(one, written, (*loc, number)) for number, one in enumerate(data)]
    return written.get(loc, data)
