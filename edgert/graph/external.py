"""Weights kept in files beside the model: checked, read and put inside."""

from __future__ import annotations

import math
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Protocol

from edgert.errors import ModelError, cause
from edgert.graph import proto as messages

if TYPE_CHECKING:
    import onnx

_FIX = "copy the data file next to the model, or export with the weights inside"


class Digest(Protocol):
    """What :mod:`hashlib` makes."""

    def update(self, data: bytes, /) -> None: ...


def embed_external_data(proto: onnx.ModelProto, file: Path, digest: Digest) -> None:
    """Reads external tensors into ``proto``; adds each data file's name and bytes, in order of name, to ``digest``.

    Data may lie only below the model's own folder: a model from elsewhere must not read the machine's other files.

    Raises:
        ModelError: a data file is missing, cut short, or outside the model's folder.
    """
    groups: dict[str, list[onnx.TensorProto]] = {}
    for tensor in _external_tensors(proto):
        groups.setdefault(_entries(tensor).get("location", ""), []).append(tensor)
    for location, tensors in sorted(groups.items()):
        data = _read(file, location)
        digest.update(location.encode() + b"\0")
        digest.update(data)
        for tensor in tensors:
            _embed(tensor, data, file)


def _external_tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    found = list(messages.tensors(proto.graph))
    for function in proto.functions:
        found.extend(messages.node_tensors(function.node))
    return [tensor for tensor in found if tensor.data_location == tensor.EXTERNAL]


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def _read(file: Path, location: str) -> bytes:
    _check_location(file, location)
    data_file = file.parent / location
    inside = file.parent.resolve()
    if not data_file.resolve().is_relative_to(inside):
        raise _outside(file, location, f"it is a link that leads to {str(data_file.resolve())!r}")
    try:
        if not data_file.is_file():
            raise ModelError(
                f"model {str(file)!r} lacks its data file {location!r}",
                why=f"no such file in {str(inside)!r}",
                fix=_FIX,
            )
        return data_file.read_bytes()
    except OSError as error:
        why = cause(error)
        raise ModelError(f"cannot read data file {location!r} of model {str(file)!r}", why=why, fix=_FIX) from error


def _check_location(file: Path, location: str) -> None:
    path = PureWindowsPath(location)  # takes both / and \, and sees drive letters
    if not location or "\0" in location:
        raise ModelError(f"model {str(file)!r} names no data file for a tensor", why="a bad export", fix=_FIX)
    if path.anchor:
        raise _outside(file, location, "it is an absolute path")
    if ".." in path.parts:
        raise _outside(file, location, "it climbs out with '..'")


def _outside(file: Path, location: str, why: str) -> ModelError:
    what = f"data file {location!r} of model {str(file)!r} lies outside the model's folder"
    return ModelError(what, why=f"{why}; external data is read only from the model's own folder", fix=_FIX)


def _embed(tensor: onnx.TensorProto, data: bytes, file: Path) -> None:
    entries = _entries(tensor)
    needed = messages.tensor_bytes(messages.dtype_name(tensor.data_type), math.prod(tensor.dims))
    offset = _number(entries, "offset", 0, tensor, file)
    length = _number(entries, "length", needed, tensor, file)
    if length != needed:
        why = f"tensor {tensor.name!r} of shape {list(tensor.dims)} takes {needed} bytes, the model says {length}"
        raise ModelError(f"model {str(file)!r} is damaged", why=why, fix="export it again")
    if offset + needed > len(data):
        why = f"tensor {tensor.name!r} ends at byte {offset + needed}, the file at {len(data)}"
        what = f"data file {entries['location']!r} of model {str(file)!r} is cut short"
        raise ModelError(what, why=why, fix="download or export it again")
    tensor.raw_data = data[offset : offset + needed]
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _number(entries: dict[str, str], key: str, default: int, tensor: onnx.TensorProto, file: Path) -> int:
    text = entries.get(key, str(default))
    if not text.isascii() or not text.isdigit():
        why = f"tensor {tensor.name!r} has {key} {text!r}; expected a number of bytes"
        raise ModelError(f"model {str(file)!r} is damaged", why=why, fix="export it again")
    return int(text)
