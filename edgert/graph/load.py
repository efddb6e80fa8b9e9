"""An ONNX file to a :class:`Model`, or the reason why not."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import ModelError, nearest
from edgert.graph import proto as messages
from edgert.graph.external import embed_external_data
from edgert.graph.model import Model
from edgert.graph.sniff import DEFAULT_FIX, fix_for, looks_like

if TYPE_CHECKING:
    import onnx


def load(path: str | PathLike[str]) -> Model:
    """Reads an ONNX file, with its external data, into memory. Blocks on the disk.

    The graph is not checked operator by operator: a backend knows better what it can run.

    Raises:
        ModelError: the file is missing, unreadable, empty, cut short or not ONNX; it has no graph or outputs; its
            external data is missing, cut short or outside the model's folder; it is newer than the installed onnx.
    """
    file = Path(path)
    data = read_file(file)
    proto = _parse(data, file)
    _check_versions(proto, file)
    _check_graph(proto, file)
    digest = hashlib.sha256(data)
    embed_external_data(proto, file, digest)
    return Model(proto, file, digest.hexdigest())


def read_file(file: Path) -> bytes:
    """The bytes of a regular file. Raises ModelError."""
    try:
        _check_file(file)
        return file.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read model {str(file)!r}",
            why=error.strerror or str(error),
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
        return ModelError(f"{str(file)!r} is not an ONNX model", why=why, fix=fix_for(kind))
    if data[:1] == b"\x08":  # an ONNX file starts with field 1, its IR version
        what = f"model {str(file)!r} is cut short or damaged"
        why = f"it starts like an ONNX file but does not end like one after {len(data)} bytes"
        return ModelError(what, why=why, fix="download or export it again")
    return ModelError(f"{str(file)!r} is not an ONNX model", why=f"{detail} ({len(data)} bytes)", fix=DEFAULT_FIX)


def _check_versions(proto: onnx.ModelProto, file: Path) -> None:
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


def _check_graph(proto: onnx.ModelProto, file: Path) -> None:
    graph = proto.graph
    missing = _missing(proto)
    if missing:
        fix = "download or export it again"
        raise ModelError(f"model {str(file)!r} is incomplete: {missing}", why="cut short, or a bad export", fix=fix)
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


def _missing(proto: onnx.ModelProto) -> str:
    if not proto.HasField("graph"):
        return "no graph"
    if not proto.graph.output:
        return "no outputs"
    needs_opset = proto.ir_version >= 3 and any(map(messages.is_standard, proto.graph.node))
    if needs_opset and not any(item.domain in messages.DEFAULT_DOMAINS for item in proto.opset_import):
        return "no operator-set version"
    return ""
