"""The key ``engines:``: who may run the models, in the order in which they are tried."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from edgert.errors import nearest

EngineName = Literal["tensorrt-dla", "tensorrt", "onnxruntime-cuda", "onnxruntime"]
TENSORRT_DLA: EngineName = "tensorrt-dla"
TENSORRT: EngineName = "tensorrt"
ORT_CUDA: EngineName = "onnxruntime-cuda"
ORT: EngineName = "onnxruntime"
ENGINES: tuple[EngineName, ...] = (TENSORRT_DLA, TENSORRT, ORT_CUDA, ORT)
"""Fastest first."""


def _chain(value: object) -> object:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"expected a list of engines: {', '.join(ENGINES)}")
    if not names:
        raise ValueError("no engine is left to run the models; name one, or leave the key out for the usual ones")
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"no engine {name!r}{nearest(str(name), ENGINES)}; known: {', '.join(ENGINES)}")
    if len(set(names)) < len(names):
        raise ValueError(f"an engine stands twice: {', '.join(names)}")
    return tuple(names)


_NAMES = {"type": "string", "enum": list(ENGINES)}
EngineChain = Annotated[
    tuple[EngineName, ...],
    BeforeValidator(_chain),
    WithJsonSchema({"anyOf": [_NAMES, {"type": "array", "items": _NAMES, "minItems": 1}]}),
]
