"""The one record that carries an ONNX model through edgert."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.errors import ModelError

if TYPE_CHECKING:
    import onnx

MAX_PROTO_BYTES = 2**31 - 1
"""Protocol buffers refuse larger messages: https://protobuf.dev/programming-guides/proto-limits/."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An ONNX model in memory, weights included.

    Attributes:
        proto: the ONNX message. Read it; to change a model, make a new one with a pass or :meth:`derive`.
        path: the file it came from, for messages; kept by models derived from it.
        digest: SHA-256 in hex. For a loaded model, of the file's bytes (followed, where there is external data, by
            each data file's name and bytes); for a derived one, of ``to_bytes``. Equal digests mean equal models.
    """

    proto: onnx.ModelProto
    path: Path
    digest: str

    def derive(self, proto: onnx.ModelProto) -> Model:
        """A model made from this one; takes ownership of ``proto``. Raises ModelError above 2 GiB."""
        return from_proto(proto, self.path)

    def copied_proto(self) -> onnx.ModelProto:
        """A deep copy of the message, the caller's to change."""
        copy = type(self.proto)()
        copy.CopyFrom(self.proto)
        return copy


def from_proto(proto: onnx.ModelProto, path: str | Path = "<memory>") -> Model:
    """A model around a message made in memory; takes ownership of it. Raises ModelError above 2 GiB."""
    data = _serialise(proto, Path(path))
    return Model(proto, Path(path), hashlib.sha256(data).hexdigest())


def to_bytes(model: Model) -> bytes:
    """The model as one ONNX file, weights inside; equal models give equal bytes. Raises ModelError above 2 GiB."""
    return _serialise(model.proto, model.path)


def _serialise(proto: onnx.ModelProto, path: Path) -> bytes:
    size_bytes = proto.ByteSize()
    if size_bytes > MAX_PROTO_BYTES:
        raise ModelError(
            f"model {str(path)!r} is too large for one ONNX file",
            why=f"it takes {size_bytes} bytes with its weights inside; ONNX files end at {MAX_PROTO_BYTES}",
            fix="use a smaller model, or quantise its weights first",
        )
    data: bytes = proto.SerializeToString(deterministic=True)
    return data
