"""Loading ONNX files: read, checked, and with the weights of external data files put inside."""

from __future__ import annotations

import codecs
import hashlib
import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Protocol

from edgert.errors import ModelError, cause, nearest
from edgert.graph import model as messages
from edgert.graph.model import Model

if TYPE_CHECKING:
    import onnx


# Checks of a parsed file: complete, undamaged, known to the installed onnx. Every later step relies on them.

_AGAIN = "download or export it again"


def check_versions(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when the file is newer than the installed onnx."""
    import onnx

    known = onnx.defs.onnx_opset_version()
    opset = messages.default_opset(proto)
    installed = f"the installed onnx {onnx.__version__}"
    if proto.ir_version > onnx.IR_VERSION:
        why = f"it has IR version {proto.ir_version}; {installed} knows up to {onnx.IR_VERSION}"
    elif opset > known:
        why = f"it uses opset {opset}; {installed} knows up to {known}"
    else:
        return
    fix = f"pip install --upgrade onnx, or export with opset {min(opset, known)} or lower"
    raise ModelError(f"model {str(file)!r} is newer than the installed onnx", why=why, fix=fix)


def check_standard(model: Model) -> None:
    """Raises ModelError where onnx's own checker, types and shapes included, finds what the standard forbids."""
    import onnx

    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"model {str(model.path)!r} is not valid ONNX", why=str(error).splitlines()[0], fix=_AGAIN
        ) from error


def check_graph(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when the graph or a part of it is missing, or a node lacks what its operator needs."""
    missing = _missing(proto)
    if missing:
        raise ModelError(f"model {str(file)!r} is incomplete: {missing}", why="cut short, or a bad export", fix=_AGAIN)
    if any(isinstance(text, bytes) for text in _texts(proto)):
        raise _damaged(file, "a name in it is not text")
    _check_outputs(proto.graph, file)
    for problem in _node_problems(proto):
        raise _damaged(file, problem)


def check_tensors(proto: onnx.ModelProto, file: Path) -> None:
    """Raises ModelError when a stored tensor has an unknown type, or more or fewer values than its shape says."""
    for tensor in messages.tensors(proto.graph):
        dtype = messages.dtype_name(tensor.data_type)
        if dtype == "unknown":
            raise _damaged(file, f"tensor {tensor.name!r} has unknown element type {tensor.data_type}")
        if any(size < 0 for size in tensor.dims) or not _is_full(tensor, dtype):
            raise _damaged(file, f"tensor {tensor.name!r} does not fill its shape {list(tensor.dims)}")


def _damaged(file: Path, why: str) -> ModelError:
    return ModelError(f"model {str(file)!r} is damaged", why=why, fix=_AGAIN)


def _missing(proto: onnx.ModelProto) -> str:
    if not proto.HasField("graph"):
        return "no graph"
    if not proto.graph.output:
        return "no outputs"
    needs_opset = proto.ir_version >= 3 and any(map(messages.is_standard, proto.graph.node))
    if needs_opset and not any(item.domain in messages.DEFAULT_DOMAINS for item in proto.opset_import):
        return "no operator-set version"
    return ""


def _texts(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    """Every name; protobuf hands out bytes for what is not UTF-8."""
    graph = proto.graph
    yield from (proto.producer_name, proto.producer_version, graph.name)
    yield from (text for item in proto.metadata_props for text in (item.key, item.value))
    yield from (item.domain for item in proto.opset_import)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in messages.tensors(graph))
    for node in messages.all_nodes(graph):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (item.name for item in node.attribute)


def _check_outputs(graph: onnx.GraphProto, file: Path) -> None:
    made = {name for node in graph.node for name in node.output}
    made |= {item.name for item in graph.input} | {item.name for item in graph.initializer}
    made |= {item.values.name for item in graph.sparse_initializer}
    for output in graph.output:
        if output.name not in made:
            raise ModelError(
                f"model {str(file)!r} never computes its output {output.name!r}",
                why=f"no node makes it{nearest(output.name, made)}",
                fix="export the model again",
            )


def _node_problems(proto: onnx.ModelProto) -> Iterator[str]:
    """What is wrong with nodes of the standard set; operators that onnx does not know are for the backend to judge."""
    from onnx import defs

    opset = messages.default_opset(proto)
    for position, node in enumerate(messages.all_nodes(proto.graph)):
        if not messages.is_standard(node) or not messages.has_schema(node.op_type, opset):
            continue
        problem = _problem(node, defs.get_schema(node.op_type, opset, ""))
        if problem:
            yield f"node {messages.label(node, position)!r} ({node.op_type}) {problem}"


def _problem(node: onnx.NodeProto, schema: Any) -> str:
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"has {len(node.input)} inputs"
    if not schema.min_output <= len(node.output) <= schema.max_output:
        return f"has {len(node.output)} outputs"
    given = {item.name: item for item in node.attribute}
    for name, wanted in schema.attributes.items():
        if wanted.required and name not in given:
            return f"lacks attribute {name!r}"
        if name in given and not given[name].ref_attr_name and given[name].type != wanted.type.value:
            return f"has attribute {name!r} of the wrong type"
    return ""


def _is_full(tensor: onnx.TensorProto, dtype: str) -> bool:
    elements: int = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        return messages.tensor_bytes(dtype, elements) == len(tensor.raw_data)
    fields = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "object": "string_data"}
    fields |= {"uint32": "uint64_data", "uint64": "uint64_data", "complex64": "float_data", "complex128": "double_data"}
    stored: int = len(getattr(tensor, fields.get(dtype, "int32_data")))
    if dtype.startswith("complex"):
        return stored == 2 * elements
    shared = messages.dtype_bits(dtype) in (2, 4)  # these share one int32 per byte
    return stored == (messages.tensor_bytes(dtype, elements) if shared else elements)


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
