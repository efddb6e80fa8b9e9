"""The pipeline file of a bundle: the same stages, with the models inside the bundle, runnable by ONNX Runtime.

Text that was written with ``${NAME}`` keeps it, so that no password is packed. Mappings are written as YAML blocks,
everything else as JSON, which YAML reads (https://yaml.org/spec/1.2.2/#12-relation-to-yaml-11-and-json).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from edgert.build.code import operator_members
from edgert.build.target import BuildTarget
from edgert.config import PipelineFile

_MADE = ("precision", "calibrate", "accuracy", "quantize")
"""Keys that have done their work once a model is quantised."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


def pipeline_text(
    file: PipelineFile,
    models: Mapping[str, str],
    labels: Mapping[str, str],
    target: BuildTarget,
    static: Collection[str] = (),
) -> str:
    """The file's text.

    Args:
        models: model → the member that ONNX Runtime runs.
        labels: model → the member with its labels, for those that have some.
        static: models whose member has one size; ``input: shape`` has done its work for them.
    """
    data = copy.deepcopy(file.document.data)
    for loc, text in file.document.written.items():
        _put(data, loc, text)
    if file.config.ops:
        data["ops"] = list(operator_members(file.config, file.document.path.parent).values())
    for name, section in data.get("models", {}).items():
        section["onnx"] = models[name]
        if name in static and "input" in section:
            section["input"].pop("shape", None)
        if name in labels:
            section["task"]["labels"] = labels[name]
        for key in (*_MADE, *(("placement",) if target.board is not None else ())):
            section.pop(key, None)
    if target.board is not None:
        data.pop("board", None)
    return "".join(f"{line}\n" for line in _lines(data, ""))


def _put(data: Any, loc: tuple[str | int, ...], text: str) -> None:
    for step in loc[:-1]:
        data = data[step]
    data[loc[-1]] = text


def _lines(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_key(key)}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name.lower() not in _WORDS else _scalar(name)


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
