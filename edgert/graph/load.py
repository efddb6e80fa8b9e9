"""An ONNX file to a :class:`Model`, or the reason why not."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import ModelError, cause, nearest
from edgert.graph.check import check_graph, check_tensors, check_versions
from edgert.graph.external import embed_external_data
from edgert.graph.model import Model
from edgert.graph.sniff import DEFAULT_FIX, fix_for, looks_like

if TYPE_CHECKING:
    import onnx


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
