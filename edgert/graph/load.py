"""Loading of ONNX files: reading, checks, and weights from external data files."""

from __future__ import annotations

import codecs
import hashlib
import math
import os
import shlex
from collections.abc import Iterator
from itertools import chain
from os import PathLike
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from edgert import limits
from edgert.errors import CONTROL, ModelError, nearest, raised_as
from edgert.graph import model as messages
from edgert.graph.model import Model
from edgert.graph.size_inputs import add_batch, bind_sizes
from edgert.installation import CHECKPOINTS, export_first
from edgert.units import whole_number

if TYPE_CHECKING:
    import onnx


_AGAIN = "download or export it again"
_MAX_SHOWN = 40  # characters of a wrong value in an error


def check_versions(proto: onnx.ModelProto, file: Path) -> None:
    """Raise ModelError when the file is newer than the installed onnx."""
    import onnx

    known = onnx.defs.onnx_opset_version()
    opset = messages.default_opset(proto)
    installed = f"the installed onnx {onnx.__version__}"
    if proto.ir_version > onnx.IR_VERSION:
        why = f"it has IR version {proto.ir_version}; {installed} reads up to {onnx.IR_VERSION}"
    elif opset > known:
        why = f"it uses opset {opset}; {installed} reads up to {known}"
    else:
        return
    fix = f"pip install --upgrade onnx, or export with opset {min(opset, known)} or lower"
    raise ModelError(f"model {str(file)!r} is newer than the installed onnx", why=why, fix=fix)


def check_standard(model: Model) -> None:
    """Raise ModelError where onnx's own checker finds the model invalid, its types and shapes included."""
    import onnx

    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"model {str(model.path)!r} is not valid ONNX", why=str(error).splitlines()[0], fix=_AGAIN
        ) from error


def check_graph(proto: onnx.ModelProto, file: Path) -> None:
    """Raise ModelError when the graph is incomplete, exceeds limits, or has a node that its operator forbids."""
    graph, missing = proto.graph, ""
    names_opset = any(item.domain in messages.DEFAULT_DOMAINS for item in proto.opset_import)
    if not proto.HasField("graph"):
        missing = "no graph"
    elif not graph.output:
        missing = "no outputs"
    elif proto.ir_version >= 3 and any(map(messages.is_standard, graph.node)) and not names_opset:
        missing = "no operator-set version"
    if missing:
        raise ModelError(f"model {str(file)!r} is incomplete: {missing}", why="cut short, or a bad export", fix=_AGAIN)
    for item in (item for owner in (proto, *proto.functions) for item in owner.opset_import):
        if not 0 <= item.version <= limits.OPERATOR_SET:
            raise _damaged(file, f"version {item.version} of operator set {item.domain!r}")
    for value in (value for body in _all_graphs(proto) for value in (*body.input, *body.output, *body.value_info)):
        sizes = value.type.tensor_type.shape.dim
        if any(dim.dim_value > limits.DIMENSION for dim in sizes):
            raise _damaged(file, f"a dimension of {value.name!r} is over {limits.DIMENSION:,}")
        _check_rank(file, value.name, len(sizes))
    for text in _all_texts(proto):
        if isinstance(text, bytes):
            raise _damaged(file, "a name in it is not text")
        if CONTROL.search(text):  # names are printed, and a terminal runs escape sequences
            raise _damaged(file, f"a name in it holds control characters: {text[:60]!r}")
    available = {name for node in graph.node for name in node.output} | {item.name for item in graph.input}
    available |= messages.initializer_names(graph)
    for output in graph.output:
        if output.name not in available:
            raise ModelError(
                f"model {str(file)!r} never computes its output {output.name!r}",
                why=f"no node writes it{nearest(output.name, available)}",
                fix="export the model again",
            )
    for problem in _node_problems(proto):
        raise _damaged(file, problem)


def check_tensors(proto: onnx.ModelProto, file: Path) -> None:
    """Raise ModelError when a stored tensor has an unknown type, or a number of values that does not fit its shape."""
    for tensor in _all_tensors(proto):
        _check_rank(file, tensor.name, len(tensor.dims))
        dtype = messages.dtype_name(tensor.data_type)
        if dtype == "unknown":
            raise _damaged(file, f"tensor {tensor.name!r} has unknown element type {tensor.data_type}")
        if any(size < 0 for size in tensor.dims) or not _is_full(tensor, dtype):
            raise _damaged(file, f"tensor {tensor.name!r} does not fill its shape {list(tensor.dims)}")


def _check_rank(file: Path, name: str, rank: int) -> None:
    if rank > limits.RANK:
        raise _damaged(file, f"tensor {name!r} has {rank} dimensions, at most {limits.RANK} are allowed")


def _damaged(file: Path, why: str, fix: str = _AGAIN) -> ModelError:
    return ModelError(f"model {str(file)!r} is damaged", why=why, fix=fix)


def _all_texts(proto: onnx.ModelProto) -> Iterator[str | bytes]:
    yield from (proto.producer_name, proto.producer_version, proto.domain)
    yield from (text for item in proto.metadata_props for text in (item.key, item.value))
    yield from (item.domain for item in proto.opset_import)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
    for node in _all_nodes(proto):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (item.name for item in node.attribute)
    for graph in _all_graphs(proto):
        yield graph.name
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in messages.tensors(proto.graph))


def _all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return chain(*map(messages.all_nodes, (proto.graph, *proto.functions)))


def _all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield proto.graph
    for node in _all_nodes(proto):
        yield from messages.subgraphs(node)


def _all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from messages.tensors(proto.graph)
    yield from (tensor for function in proto.functions for tensor in messages.node_tensors(function.node))


def _node_problems(proto: onnx.ModelProto) -> Iterator[str]:
    """Yield errors of standard nodes; backends judge operators that onnx does not have."""
    from onnx import defs

    for owner, imports in ((proto.graph, proto), *((function, function) for function in proto.functions)):
        opset = messages.default_opset(imports)
        for position, node in enumerate(messages.all_nodes(owner)):
            if not messages.is_standard(node) or not messages.has_schema(node.op_type, opset):
                continue
            problem = _node_problem(node, defs.get_schema(node.op_type, opset, ""))
            if problem:
                yield f"node {messages.label(node, position)!r} ({node.op_type}) {problem}"


def _node_problem(node: onnx.NodeProto, schema: Any) -> str:
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return f"has {len(node.input)} inputs"
    for name, wanted in zip(node.input, schema.inputs, strict=False):
        if not name and wanted.option.name == "Single":
            return f"lacks input {wanted.name!r}"
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
    is_packed = messages.dtype_bits(dtype) in (2, 4)  # each int32 holds one byte of such elements
    return stored == (messages.tensor_bytes(dtype, elements) if is_packed else elements)


_MAGIC = (
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"%PDF", "a PDF"),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch .pt file"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"7z\xbc\xaf", "a 7-zip archive"),
    (0, b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (0, b"\x80\x02", "a Python pickle, such as an old PyTorch .pth file"),
    (0, b"\x80\x03", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x80\x05", "a Python pickle"),
    (0, b"ftrt", "a TensorRT engine"),
    (0, b"\x7fELF", "a program or shared library"),
    (0, b"GGUF", "a GGUF model"),
    (0, b"version https://git-lfs.github.com/spec", "a Git LFS pointer"),
    (4, b"ORTM", "an ONNX Runtime .ort file"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ftyp", "an MP4 video"),
    (8, b'{"', "a safetensors file"),
    (8, b"{}", "a safetensors file"),
)
"""Offset, bytes, and the file type that they identify."""
_ULTRALYTICS, _YOLOV5 = "a checkpoint of Ultralytics' YOLO", "a checkpoint of YOLOv5"
_CHECKPOINTS = ((b"cultralytics.", _ULTRALYTICS), (b"cmodels.yolo\n", _YOLOV5))
"""Names of modules in pickles, after the opcode GLOBAL (``c``), and what they identify; PyTorch does not compress."""
_MARKUP = ((b"<!doctype html", "a web page"), (b"<html", "a web page"), (b"<?xml", "an XML file"))

_FIXES = {
    "a Git LFS pointer": "fetch the real file: git lfs pull",
    "a TensorRT engine": "engines fit one machine only; give the ONNX file that it was built from",
    "an ONNX Runtime .ort file": "edgert reads ONNX; give the .onnx file that it was converted from",
    "a TensorFlow Lite model": "edgert import FILE -o model.onnx",
    "a web page": "download the file itself (the 'raw' link), not the page that shows it",
    _ULTRALYTICS: "yolo export model=FILE format=onnx, where Ultralytics is installed; then give the .onnx file",
    _YOLOV5: "in YOLOv5's folder: python export.py --weights FILE --include onnx; then give the .onnx file",
    "a zip archive, such as a PyTorch .pt file": "unpack the archive; where PyTorch wrote it, torch.onnx.export there",
    "a Python pickle, such as an old PyTorch .pth file": "edgert import module:function, or torch.onnx.export",
    "an HDF5 file, such as a Keras model": "convert it to ONNX with tf2onnx",
}
_DEFAULT_FIX = "give a file written by an ONNX exporter, such as torch.onnx.export"


def file_kind(data: bytes) -> str:
    """Return the kind of a file, ``"a JPEG image"``; empty when it is not recognized. Nothing is unpickled."""
    for mark, name in _CHECKPOINTS:
        if data.startswith((b"PK\x03\x04", b"\x80")) and mark in data:
            return name
    for start, magic, name in _MAGIC:
        if data.startswith(magic, start):
            return name
    head = data[:512]
    for mark, name in _MARKUP:
        if head.lstrip().lower().startswith(mark):
            return name
    if head and not any(head):
        return "a file of zeros"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the sample may end inside a character
    except UnicodeDecodeError:
        return ""
    return "a text file" if head and all(byte >= 32 or byte in b"\t\n\r\f" for byte in head) else ""


_DATA_FIX = "copy the data file next to the model, or export with the weights inside"


def embed_external_data(proto: onnx.ModelProto, file: Path, digest: hashlib._Hash) -> None:
    """Read external tensors into ``proto``, and add each data file's name and bytes to ``digest``, in order of name.

    Data must lie below the model's folder, so that a model from a stranger cannot read other files.

    Args:
        proto: message to change in place.
        file: model file.
        digest: hash to update.

    Raises:
        ModelError: a data file is missing, cut short, or outside the model's folder, or too large.
    """
    groups: dict[str, list[onnx.TensorProto]] = {}
    for tensor in _all_tensors(proto):
        if tensor.data_location == tensor.EXTERNAL:
            groups.setdefault(_data_location(tensor).get("location", ""), []).append(tensor)
    # tensors may share bytes of a file, so the sum can exceed its size; a damaged one below 0 must not lower it
    size_bytes = sum(max(_size_bytes(one), 0) for tensors in groups.values() for one in tensors)
    messages.check_size(size_bytes, file, limits.WEIGHTS_BYTES)
    for location, tensors in sorted(groups.items()):
        data = _read_data_file(file, location)
        digest.update(location.encode() + b"\0")
        digest.update(data)
        for tensor in tensors:
            _embed(tensor, data, file)


def _data_location(tensor: onnx.TensorProto) -> dict[str, str]:
    return {item.key: item.value for item in tensor.external_data}


def _read_data_file(file: Path, location: str) -> bytes:
    path = PureWindowsPath(location)  # splits at both / and \ and knows drive letters
    if not location or "\0" in location:
        raise ModelError(f"model {str(file)!r} names no data file for a tensor", why="a bad export", fix=_DATA_FIX)
    data_file, inside = file.parent / location, file.parent.resolve()
    real = Path(os.path.realpath(data_file))  # resolve() raises for circular links
    outside = ""
    if path.anchor:
        outside = "it is an absolute path"
    elif ".." in path.parts:
        outside = "it leaves the folder with '..'"
    elif not real.is_relative_to(inside):
        outside = f"it is a link that leads to {str(real)!r}"
    if outside:
        what = f"data file {location!r} of model {str(file)!r} lies outside the model's folder"
        raise ModelError(what, why=f"{outside}; external data is read only from the model's own folder", fix=_DATA_FIX)
    what = f"cannot read data file {location!r} of model {str(file)!r}"
    with raised_as(ModelError, what, fix=_DATA_FIX):
        if data_file.is_file():
            messages.check_size(data_file.stat().st_size, file, limits.WEIGHTS_BYTES)
            return data_file.read_bytes()
    why = f"no such file in {str(inside)!r}"
    raise ModelError(f"model {str(file)!r} lacks its data file {location!r}", why=why, fix=_DATA_FIX, code="E202")


def _embed(tensor: onnx.TensorProto, data: bytes, file: Path) -> None:
    entries = _data_location(tensor)
    needed = _size_bytes(tensor)
    offset = _byte_count(tensor, "offset", entries.get("offset", "0"), file)
    length = _byte_count(tensor, "length", entries.get("length", str(needed)), file)
    if length != needed:
        why = f"tensor {tensor.name!r} of shape {list(tensor.dims)} takes {needed} bytes, the model records {length}"
        raise _damaged(file, why, "export it again")
    if offset + needed > len(data):
        why = f"tensor {tensor.name!r} ends at byte {offset + needed}, the file at {len(data)}"
        what = f"data file {entries['location']!r} of model {str(file)!r} is cut short"
        raise ModelError(what, why=why, fix=_AGAIN)
    tensor.raw_data = data[offset : offset + needed]
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _size_bytes(tensor: onnx.TensorProto) -> int:
    return messages.tensor_bytes(messages.dtype_name(tensor.data_type), math.prod(tensor.dims))


def _byte_count(tensor: onnx.TensorProto, key: str, text: str, file: Path) -> int:
    """Return the number of bytes that a text states; raise ModelError for any other text."""
    if (number := whole_number(text)) is None:
        shown = f"{text[:_MAX_SHOWN]!r}{' ...' if len(text) > _MAX_SHOWN else ''}"
        why = f"tensor {tensor.name!r} has {key} {shown}; expected a number of bytes"
        raise _damaged(file, why, "export it again")
    return number


def load(path: str | PathLike[str], *, bound: bool = True) -> Model:
    """Read an ONNX file, with its external data, into memory; blocks on the disk.

    Operators unknown to onnx are accepted: the backend decides whether it can run them.

    Args:
        path: path of the file.
        bound: whether inputs are reduced to what a pipeline feeds; see :mod:`edgert.graph.size_inputs`.

    Raises:
        ModelError: the file is missing, unreadable, empty, cut short, damaged or not ONNX. It has no graph or outputs,
            is too large, or newer than the installed onnx. External data is missing, cut short or outside the model's
            folder.
    """
    file = Path(path)
    data = read_file(file)
    proto = _parse(data, file)
    check_versions(proto, file)
    check_graph(proto, file)
    digest = hashlib.sha256(data)
    embed_external_data(proto, file, digest)
    check_tensors(proto, file)
    if bound:
        bind_sizes(proto)
        add_batch(proto, messages.default_opset(proto))
    return Model(proto, file, digest.hexdigest())


def read_file(file: Path) -> bytes:
    """Return the bytes of a model file; raise ModelError where it cannot be read or is larger than 2 GiB."""
    fix = "check the permissions of the file and its folders"
    with raised_as(ModelError, f"cannot read model {str(file)!r}", fix=fix):
        if file.is_file():
            messages.check_size(file.stat().st_size, file)
            return file.read_bytes()
        if file.is_dir():
            inside = sorted(item.name for item in file.glob("*.onnx"))
            fix = f"name a file in it, like {inside[0]}" if inside else "give the .onnx file itself"
            raise ModelError(f"model {str(file)!r} is a directory", fix=fix)
        if file.exists():
            raise ModelError(f"model {str(file)!r} is not a regular file", fix="give the .onnx file itself")
        known = [item.name for item in file.parent.glob("*.onnx")] if file.parent.is_dir() else []
        why = f"no file {file.name!r} in {str(file.parent.absolute())!r}{nearest(file.name, known)}"
        raise ModelError(f"model {str(file)!r} does not exist", why=why, fix="check the path")


def _parse(data: bytes, file: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if not data:
        raise ModelError(f"model {str(file)!r} is empty", why="0 bytes", fix=_AGAIN)
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise _not_onnx(data, file, str(error)) from error
    if not proto.ir_version and not proto.HasField("graph"):
        raise _not_onnx(data, file, "no ONNX version and no graph in it")
    return proto


def _not_onnx(data: bytes, file: Path, detail: str) -> ModelError:
    kind = file_kind(data)
    if kind:
        why = f"it looks like {kind}, {len(data)} bytes"
        pipeline = "give the model file that the pipeline names (edgert validate checks a pipeline file)"
        fix = _FIXES.get(kind, _DEFAULT_FIX).replace("FILE", shlex.quote(str(file)))
        if file.suffix in (".yaml", ".yml"):
            fix = pipeline
        elif file.suffix in CHECKPOINTS and kind not in (_ULTRALYTICS, _YOLOV5):
            fix = export_first(str(file))
        return ModelError(f"{str(file)!r} is not an ONNX model", why=why, fix=fix, code="E201")
    if data[:1] == b"\x08":  # an ONNX file starts with field 1, its IR version
        what = f"model {str(file)!r} is cut short or damaged"
        why = f"it starts like an ONNX file but does not end like one after {len(data)} bytes"
        return ModelError(what, why=why, fix=_AGAIN)
    why = f"{detail} ({len(data)} bytes)"
    return ModelError(f"{str(file)!r} is not an ONNX model", why=why, fix=_DEFAULT_FIX, code="E201")
