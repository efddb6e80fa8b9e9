"""A Triton model repository: for every model ``NAME/config.pbtxt``, and ``NAME/1/model.onnx`` or ``model.plan``.

The format: https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto and
https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel

from edgert._version import __version__
from edgert.compiler.model_forms import FLOAT, FP16, ORT
from edgert.config import ClassifyTask
from edgert.config.engine_choice import ReplicateConfig
from edgert.config.pipeline_file import key_value
from edgert.engine import open_spans
from edgert.errors import BuildError
from edgert.exporter.source import Item, Plan
from edgert.graph import TensorSpec, inputs, load, outputs, to_bytes

# Protocol buffers as text: https://protobuf.dev/reference/protobuf/textformat-spec.


class Word(str):
    """Name of an enumeration's value, which is written without quotes."""

    __slots__ = ()


Message: TypeAlias = Mapping[str, Any]
"""Values by field: a Word, text, bool or int; a Message; or a sequence of these."""


def format_message(message: Message) -> str:
    """Return the text of a message, one field a line. Scalars become one list; for messages the field is repeated."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def map_entries(entries: Mapping[str, Any]) -> list[Message]:
    """Return a ``map`` field, whose entries are messages with a key and a value."""
    return [{"key": key, "value": value} for key, value in entries.items()]


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _block(name, value, indent)
        elif isinstance(value, (str, int)):
            yield f"{indent}{name}: {_scalar(value)}"
        elif value and isinstance(value[0], Mapping):
            for one in value:
                yield from _block(name, one, indent)
        else:
            yield f"{indent}{name}: [{', '.join(map(_scalar, value))}]"


def _block(name: str, message: Message, indent: str) -> Iterator[str]:
    yield f"{indent}{name} {{"
    yield from _lines(message, indent + "  ")
    yield f"{indent}}}"


def _scalar(value: Word | str | bool | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Word, int)):
        return str(value)
    # bytes that are no printable ASCII as three octal digits, which every reader accepts
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in value.encode())
    return f'"{"".join(plain)}"'


Device = Literal["cpu", "gpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
USUAL_BATCH = 4
"""Triton's default for a model with a batch and no limit: "Auto-Generated Model Configuration"."""
_TYPES = {
    **{f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "bool": "TYPE_BOOL",
    "object": "TYPE_STRING",
}
_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}


@dataclass(frozen=True, slots=True)
class Served:
    """A model for a Triton server.

    Attributes:
        threads: CPU threads of each copy; None uses the default of ONNX Runtime.
        dla_core: DLA core of a TensorRT engine's DLA layers.
        precision: precision with which ONNX Runtime's TensorRT runs a model on a GPU; empty without TensorRT.
        shapes: typical shapes by input, for the warm-up of inputs with open dimensions.
        max_batch: requested largest batch; None for ``usual_batch``.
        limitations: work that clients of the server have to do, one line each.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    content: bytes
    backend: Literal["onnxruntime", "tensorrt"] = "onnxruntime"
    device: Device = "cpu"
    instances: int = 1
    threads: int | None = None
    dla_core: int | None = None
    precision: str = ""
    shapes: Mapping[str, Sequence[int]] | None = None
    max_batch: int | None = None
    usual_batch: int = USUAL_BATCH
    labels: bytes = b""
    is_classifier: bool = False
    limitations: tuple[str, ...] = ()


def repository_part(served: Served) -> dict[str, bytes]:
    """Return a model's files. The configuration is last, so that a server that reads it finds all other files.

    Raises BuildError where Triton cannot serve it.
    """
    files = {f"{served.name}/1/{_FILES[served.backend]}": served.content}
    if served.labels:
        files[f"{served.name}/labels.txt"] = served.labels
    return {**files, f"{served.name}/config.pbtxt": config_text(served).encode()}


def config_text(served: Served) -> str:
    """Return ``config.pbtxt``, whose comments list its omissions. Raises BuildError as :func:`repository_part`."""
    lines = [f"{served.name}, written by edgert {__version__}"]
    missing = [] if _warmup(served, batch_of(served)) else ["a warm-up: the sizes of its inputs are open"]
    if found := [*served.limitations, *missing]:
        lines.append("Not expressed below, because Triton's configuration has no field for it:")
        lines += [f"  - {' '.join(line.split())}" for line in found]  # a line break would end the comment
    return "".join(f"# {line}\n" for line in lines) + "\n" + format_message(config(served))


def config(served: Served) -> Message:
    """Return the message ``ModelConfig``. Raises BuildError as :func:`repository_part`."""
    batch = batch_of(served)
    message: dict[str, Any] = {"name": served.name, "backend": served.backend, "max_batch_size": batch}
    message["input"] = [_port(spec, batch, served) for spec in served.inputs]
    outputs = [_port(spec, batch, served) for spec in served.outputs]
    if served.labels and served.is_classifier and len(outputs) == 1:
        outputs[0]["label_filename"] = "labels.txt"
    message["output"] = outputs
    group: dict[str, Any] = {"count": served.instances, "kind": Word(f"KIND_{served.device.upper()}")}
    if served.dla_core is not None:
        group["secondary_devices"] = [{"kind": Word("KIND_NVDLA"), "device_id": served.dla_core}]
    message["instance_group"] = [group]
    if batch:
        message["dynamic_batching"] = {}
    if served.threads is not None and served.backend == "onnxruntime":
        message["parameters"] = map_entries({"intra_op_thread_count": {"string_value": str(served.threads)}})
    if served.precision and served.device == "gpu" and served.backend == "onnxruntime":
        accelerator = {"name": "tensorrt", "parameters": map_entries({"precision_mode": served.precision})}
        message["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}
    warmup = _warmup(served, batch)
    return {**message, "model_warmup": [warmup]} if warmup else message


def batch_of(served: Served) -> int:
    """Return ``max_batch_size``: 0 unless the first dimension of every input and output is open and has one name.

    Triton then puts the batch before ``dims``. A fixed batch is a part of ``dims``. So are first dimensions with
    different names, such as the number of boxes. Raises BuildError where ``max_batch`` is not possible.
    """
    first = {spec.shape[0] if spec.shape else 0 for spec in (*served.inputs, *served.outputs)}
    if len(first) == 1 and isinstance(next(iter(first)), str):
        return served.usual_batch if served.max_batch is None else served.max_batch
    if served.max_batch:
        raise BuildError(
            f"model {served.name!r} cannot be served in batches of {served.max_batch}",
            why="its first dimensions are "
            + ", ".join(str(spec) for spec in (*served.inputs, *served.outputs))
            + ", not one open batch",
            fix="leave --max-batch out, or export the model with an open batch",
        )
    return 0


def _port(spec: TensorSpec, batch: int, served: Served) -> dict[str, Any]:
    """Return an input or output. A scalar has dims of 1 and is reshaped, since Triton has no empty ``dims``."""
    if not spec.ranked:
        raise BuildError(
            f"tensor {spec.name!r} of model {served.name!r} has an unknown number of dimensions",
            why="Triton's configuration needs this number",
            fix="export the model with shapes, or run edgert build, which finds them",
        )
    dims = [dim if isinstance(dim, int) else -1 for dim in spec.shape[1 if batch else 0 :]]
    port: dict[str, Any] = {"name": spec.name, "data_type": _type(spec, served), "dims": dims or [1]}
    return port if dims else {**port, "reshape": {"shape": []}}


def _type(spec: TensorSpec, served: Served) -> Word:
    if spec.dtype not in _TYPES:
        raise BuildError(
            f"tensor {spec.name!r} of model {served.name!r} is {spec.dtype}",
            why=f"Triton serves {', '.join(_TYPES)}",
            fix="export the model with inputs and outputs of another type",
        )
    return Word(_TYPES[spec.dtype])


def _warmup(served: Served, batch: int) -> Message | None:
    """Return a warm-up request of zeros, after which the first real request is fast; None if a size is unknown."""
    inputs: dict[str, Message] = {}
    for spec in served.inputs:
        sizes = (served.shapes or {}).get(spec.name, spec.shape)[1 if batch else 0 :]
        shape = [dim for dim in sizes if isinstance(dim, int)]
        if not spec.ranked or len(shape) < len(sizes) or spec.dtype == "object":
            return None
        inputs[spec.name] = {"data_type": _type(spec, served), "dims": shape or [1], "zero_data": True}
    return {"name": "zeros", "batch_size": 1, "inputs": map_entries(inputs)}


# The models of a bundle in Triton.

_GPU = "gpu"
_FORMS: Mapping[Device, tuple[str, ...]] = {"cpu": (ORT, FP16, FLOAT), "gpu": (_GPU, FP16, FLOAT)}
_TENSORRT_MODES = {_GPU: "INT8", FP16: "FP16", FLOAT: "FP32"}
"""Precisions of TensorRT inside ONNX Runtime, by form on a GPU:
https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization."""


def served_models(item: Item, device: Device, max_batch: int | None = None) -> list[Served]:
    """Return Triton's models of a model: one per engine that a board compiled, or else one for ONNX Runtime.

    Triton cannot share frames among several engines, so each engine becomes a separate model.
    """
    plans = item.plans if device == "gpu" else ()
    form = next(name for name in _FORMS[device] if name in item.forms)
    model = load(item.forms[form])
    spans, requested = open_spans(model, item.config), item.config.placement
    served = Served(
        item.name,
        inputs(model),
        outputs(model),
        b"" if plans else to_bytes(model),
        device=device,
        instances=len(requested.replicate) if device == "cpu" and isinstance(requested, ReplicateConfig) else 1,
        threads=item.config.threads if device == "cpu" else None,
        precision=_TENSORRT_MODES[form] if item.packed is not None and device == "gpu" else "",
        shapes={name: span.usual for name, span in spans.items()} or next(iter(item.config.profiles.values()), {}),
        max_batch=max_batch,
        usual_batch=max((span.most[0] for span in spans.values() if span.most), default=USUAL_BATCH),
        labels=item.files["labels"].read_bytes() if "labels" in item.files else b"",
        is_classifier=isinstance(item.config.task, ClassifyTask),
        limitations=(*item.processing, *(_settings("tuning", item.config.tuning) if device == "cpu" else ())),
    )
    if plans:
        return [_with_engine(served, item, plan) for plan in plans]
    places = " and ".join("+".join(engine.accelerators) for engine in item.engines)
    placement = (f"its placement on {places}: here it runs on one device",) if item.uses_dla else ()
    # on a GPU, builder options of TensorRT inside ONNX Runtime
    builder = _settings("tensorrt", item.config.tensorrt) if device == "gpu" else ()
    return [replace(served, limitations=(*served.limitations, *placement, *builder))]


def _with_engine(served: Served, item: Item, plan: Plan) -> Served:
    """Return the model on one engine, with the model's name if there is only one engine."""
    total = sum(one.weight for one in item.plans)
    share = (f"engines: clients send {plan.weight} of {total} frames here",) if len(item.plans) > 1 else ()
    machine = "that an engine only runs on the machine that compiled it"
    return replace(
        served,
        name=served.name if not share else f"{served.name}-{item.plans.index(plan)}-{plan.place}",
        backend="tensorrt",
        content=plan.path.read_bytes(),
        dla_core=plan.dla_core,
        limitations=(*served.limitations, *share, machine),
    )


def _settings(section: str, values: BaseModel) -> tuple[str, ...]:
    changed = values.model_dump(mode="json", exclude_defaults=True)
    return (f"{section}: {' '.join(key_value(key, value) for key, value in changed.items())}",) if changed else ()
