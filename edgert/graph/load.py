"""Loading ONNX files: read, checked, and with the weights of external data files put inside."""

from __future__ import annotations

import codecs
import hashlib
import math
from os import PathLike
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Protocol

from edgert.errors import ModelError, cause, nearest
from edgert.graph import proto as messages
from edgert.graph.model import Model
from edgert.graph.validation import check_graph, check_tensors, check_versions

if TYPE_CHECKING:
    import onnx


# What a file that is not an ONNX model looks like instead, so that the error can say so.

_LEADING = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch .pt file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf", "a 7-zip archive"),
    (b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (b"\x80\x02", "a Python pickle, such as an old PyTorch .pth file"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
    (b"ftrt", "a TensorRT engine"),
    (b"\x7fELF", "a program or shared library"),
    (b"GGUF", "a GGUF model"),
    (b"version https://git-lfs.github.com/spec", "a Git LFS pointer"),
)
_AT_FOUR = (
    (b"ORTM", "an ONNX Runtime .ort file"),
    (b"TFL3", "a TensorFlow Lite model"),
    (b"ftyp", "an MP4 video"),
)
_ULTRALYTICS, _YOLOV5 = "a checkpoint of Ultralytics' YOLO", "a checkpoint of YOLOv5"
_CHECKPOINTS = ((b"cultralytics.", _ULTRALYTICS), (b"cmodels.yolo\n", _YOLOV5))
"""How pickles name the module of a class: the opcode GLOBAL, ``c``. PyTorch stores its pickle without compression."""
_MARKUP = ((b"<!doctype html", "a web page"), (b"<html", "a web page"), (b"<?xml", "an XML file"))

_FIXES = {
    "a Git LFS pointer": "fetch the real file: git lfs pull",
    "a TensorRT engine": "engines fit one machine only; give the ONNX file that it was built from",
    "an ONNX Runtime .ort file": "edgert reads ONNX; give the .onnx file that it was converted from",
    "a TensorFlow Lite model": "edgert import FILE -o model.onnx",
    "a web page": "download the file itself (the 'raw' link), not the page that shows it",
    _ULTRALYTICS: "where it can be loaded: yolo export model=FILE.pt format=onnx; then give the .onnx file",
    _YOLOV5: "in YOLOv5's folder: python export.py --weights FILE.pt --include onnx; then give the .onnx file",
    "a zip archive, such as a PyTorch .pt file": "edgert import FILE.pt2, or torch.onnx.export; or unpack the archive",
    "a Python pickle, such as an old PyTorch .pth file": "edgert import module:function, or torch.onnx.export",
    "an HDF5 file, such as a Keras model": "convert it to ONNX with tf2onnx",
}
DEFAULT_FIX = "give a file written by an ONNX exporter, such as torch.onnx.export"


def looks_like(data: bytes) -> str:
    """What a file looks like, ``"a JPEG image"``; an empty string when nothing is recognized. Nothing is unpickled."""
    for mark, name in _CHECKPOINTS:
        if data.startswith((b"PK\x03\x04", b"\x80")) and mark in data:
            return name
    for magic, name in _LEADING:
        if data.startswith(magic):
            return name
    for magic, name in _AT_FOUR:
        if data[4:8] == magic:
            return name
    if data[8:9] == b"{" and data[9:10] in (b'"', b"}"):
        return "a safetensors file"
    return _text(data[:512])


def fix_for(kind: str) -> str:
    """What to do about a file of that kind."""
    return _FIXES.get(kind, DEFAULT_FIX)


def _text(head: bytes) -> str:
    for mark, name in _MARKUP:
        if head.lstrip().lower().startswith(mark):
            return name
    if head and not any(head):
        return "a file of zeros"
    printable = all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
    return "a text file" if head and printable and _is_utf8(head) else ""


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # incremental: the sample may end inside a character
    except UnicodeDecodeError:
        return False
    return True


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
        why = f"tensor {tensor.name!r} of shape {list(tensor.dims)} takes {needed} bytes, the model records {length}"
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


# An ONNX file to a :class:`Model`, or the reason why not.


def load(path: str | PathLike[str]) -> Model:
    """Reads an ONNX file, with its external data, into memory. Blocks on the disk.

    Operators that onnx does not know are let through: a backend knows better what it can run.

    Raises:
        ModelError: the file is missing, unreadable, empty, cut short, damaged or not ONNX; it has no graph or outputs;
            its external data is missing, cut short or outside the model's folder; it is newer than the installed onnx.
    """
    file = Path(path)
    data = read_file(file)
    proto = _parse(data, file)
    check_versions(proto, file)
    check_graph(proto, file)
    digest = hashlib.sha256(data)
    embed_external_data(proto, file, digest)
    check_tensors(proto, file)
    return Model(proto, file, digest.hexdigest())


def read_file(file: Path) -> bytes:
    """The bytes of a regular file. Raises ModelError."""
    try:
        _check_file(file)
        return file.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read model {str(file)!r}",
            why=cause(error),
            fix="check the permissions of the file and its folders",
        ) from error


def _check_file(file: Path) -> None:
    if file.is_dir():
        inside = sorted(item.name for item in file.glob("*.onnx"))
        fix = f"name a file in it, like {inside[0]}" if inside else "give the .onnx file itself"
        raise ModelError(f"model {str(file)!r} is a directory", fix=fix)
    if not file.exists():
        known = [item.name for item in file.parent.glob("*.onnx")] if file.parent.is_dir() else []
        why = f"no file {file.name!r} in {str(file.parent.absolute())!r}{nearest(file.name, known)}"
        raise ModelError(f"model {str(file)!r} does not exist", why=why, fix="check the path")
    if not file.is_file():
        raise ModelError(f"model {str(file)!r} is not a regular file", fix="give the .onnx file itself")


def _parse(data: bytes, file: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if not data:
        raise ModelError(f"model {str(file)!r} is empty", why="0 bytes", fix="download or export it again")
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise _not_onnx(data, file, str(error)) from error
    if not proto.ir_version and not proto.HasField("graph"):
        raise _not_onnx(data, file, "no ONNX version and no graph in it")
    return proto


def _not_onnx(data: bytes, file: Path, detail: str) -> ModelError:
    kind = looks_like(data)
    if kind:
        why = f"it looks like {kind}, {len(data)} bytes"
        pipeline = "edgert validate checks a pipeline file; here, name the model that it names"
        fix = pipeline if file.suffix in (".yaml", ".yml") else fix_for(kind)
        return ModelError(f"{str(file)!r} is not an ONNX model", why=why, fix=fix)
    if data[:1] == b"\x08":  # an ONNX file starts with field 1, its IR version
        what = f"model {str(file)!r} is cut short or damaged"
        why = f"it starts like an ONNX file but does not end like one after {len(data)} bytes"
        return ModelError(what, why=why, fix="download or export it again")
    return ModelError(f"{str(file)!r} is not an ONNX model", why=f"{detail} ({len(data)} bytes)", fix=DEFAULT_FIX)
