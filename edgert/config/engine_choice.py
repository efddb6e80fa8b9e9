"""The keys ``engines:`` and ``placement:``: which engines run the models, and on which accelerators."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from edgert.config.fields import Section
from edgert.errors import nearest

# The key ``engines:``: engines that may run the models, in the order in which they are tried.

EngineName = Literal["tensorrt-dla", "tensorrt", "onnxruntime-cuda", "onnxruntime"]
TENSORRT_DLA: EngineName = "tensorrt-dla"
TENSORRT: EngineName = "tensorrt"
ORT_CUDA: EngineName = "onnxruntime-cuda"
ORT: EngineName = "onnxruntime"
ENGINES: tuple[EngineName, ...] = (TENSORRT_DLA, TENSORRT, ORT_CUDA, ORT)
"""All engines, the fastest first."""


def _check_chain(value: object) -> object:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError(f"expected a list of engines: {', '.join(ENGINES)}")
    if not names:
        raise ValueError("no engine would run the models; name one, or leave the key out for the default engines")
    for name in names:
        if name not in ENGINES:
            alone, _, number = str(name).partition(":")
            if alone in ENGINES and number.isdigit():
                raise ValueError(
                    f"{name} names a GPU; write {alone}, and start edgert with CUDA_VISIBLE_DEVICES={number}"
                )
            raise ValueError(f"unknown engine {name!r}{nearest(str(name), ENGINES)}; known: {', '.join(ENGINES)}")
    if len(set(names)) < len(names):
        raise ValueError(f"an engine is listed twice: {', '.join(names)}")
    return tuple(names)


_NAME_SCHEMA = {"enum": list(ENGINES)}
EngineChain = Annotated[
    tuple[EngineName, ...],
    BeforeValidator(_check_chain),
    WithJsonSchema({"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}),
]


_ACCELERATOR = r"(gpu|dla[01]?|cpu\d+)"


def _check_accelerator(value: object) -> object:
    if not isinstance(value, str) or not re.fullmatch(_ACCELERATOR, value):
        hint = nearest(str(value), ("gpu", "dla", "dla0", "dla1", "cpu0", "cpu1"))
        raise ValueError(f"expected an accelerator: gpu, dla, dla0, dla1, cpu0, cpu1 …{hint}")
    return value


_ACCELERATOR_SCHEMA = {"type": "string", "pattern": f"^{_ACCELERATOR}$"}
Accelerator = Annotated[str, BeforeValidator(_check_accelerator), WithJsonSchema(_ACCELERATOR_SCHEMA)]
_WEIGHTS_SCHEMA = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}, "minProperties": 1},
        {"type": "array", "items": _ACCELERATOR_SCHEMA, "minItems": 1},
    ]
}


class ReplicateConfig(Section):
    """Copies of the model on several accelerators; frames are distributed over them and put back in order."""

    replicate: Annotated[
        dict[Accelerator, Annotated[int, Field(ge=1)]],
        Field(min_length=1),
        BeforeValidator(lambda value: dict.fromkeys(value, 1) if isinstance(value, (list, tuple)) else value),
        WithJsonSchema(_WEIGHTS_SCHEMA),
    ] = Field(description="accelerator: weight; {cpu0: 2, cpu1: 1} gives cpu0 two of three frames")


def _placement_tag(data: object) -> str:
    if not isinstance(data, dict):
        return "<replicate>" if isinstance(data, ReplicateConfig) else "<whole>"
    return "<replicate>" if isinstance(data.get("replicate"), (dict, list)) else "<nodes>"


PlacementConfig = Annotated[
    Annotated[
        str,
        BeforeValidator(lambda value: value if value == "auto" else _check_accelerator(value)),
        WithJsonSchema({"type": "string", "pattern": f"^(auto|{_ACCELERATOR[1:]}$"}),
        Tag("<whole>"),
    ]
    | Annotated[ReplicateConfig, Tag("<replicate>")]
    | Annotated[dict[str, Accelerator], Field(min_length=1), Tag("<nodes>")],
    Discriminator(_placement_tag),
]
"""``auto``, one accelerator for the whole model, node glob → accelerator, or replicas by weight."""
PLACEMENT_HELP = """
One of:

- `auto`: what suits the machine.
- an accelerator: the complete model runs there. A PC has `cpu0`, `cpu1` …, one per core; a Jetson also has `gpu`,
  `dla0` and `dla1`.
- nodes by glob, `{"*": cpu0, "/head/*": cpu1}`: the model is split where the accelerator changes, and its parts work on
  different frames at the same time. The last matching glob decides. Nodes that no glob matches follow the first glob;
  on a Jetson, `plan` and `build` place them.
- `{replicate: {cpu0: 2, cpu1: 1}}`: the model runs on each; frames are shared by weight and put back in order.
"""
