"""Small bundles, made without building anything."""

import io
from collections.abc import Mapping
from pathlib import Path

from edgert.bundle.bundle import save_bundle
from edgert.bundle.manifest import NAME, Manifest, ModelEntry
from edgert.graph import TensorSpec
from edgert.zip_archive import member_of, pack

MEMBERS: Mapping[str, bytes] = {
    "pipeline.yaml": b"schema: 1\nstages:\n  a: {source: api}\n",
    "models/parts/model.onnx": bytes(range(256)) * 2,
    "models/parts/quality.json": b'{"forms": {}}\n',
}


def manifest_of(members: Mapping[str, bytes] = MEMBERS, **changes: object) -> Manifest:
    port = TensorSpec("x", (1, 3, "h", None), "float32")
    model = ModelEntry(
        source="parts.onnx",
        digest="0" * 64,
        precision="fp32",
        inputs=[port],
        outputs=[port],
        forms={"float": "models/parts/model.onnx"},
        files={"quality": "models/parts/quality.json"},
    )
    made = Manifest(
        name="dock",
        board="orin-nx-16gb",
        mode="15W",
        tensorrt="10.3.0",
        engines=["tensorrt-dla", "tensorrt", "onnxruntime-cuda", "onnxruntime"],
        pipeline="pipeline.yaml",
        sources={"a": "api"},
        sinks={},
        models={"parts": model},
        members={path: member_of(content) for path, content in members.items()},
    )
    return made.model_copy(update=changes)


def bundle(path: Path) -> Path:
    save_bundle(path, manifest_of(), MEMBERS)
    return path


def packed(members: Mapping[str, bytes]) -> bytes:
    """An archive with a true digest, whatever is in it."""
    file = io.BytesIO()
    pack(members, file, NAME)
    return file.getvalue()
