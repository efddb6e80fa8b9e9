"""A model of a bundle as Triton is to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgert.build.prepared import FLOAT, FP16, ORT
from edgert.config import ClassifyTask
from edgert.config.placement import ReplicateConfig
from edgert.config.short import setting
from edgert.export.source import Item, Plan
from edgert.export.triton import USUAL_BATCH, Device, Served
from edgert.graph.load import load
from edgert.graph.model import to_bytes
from edgert.graph.spec import inputs, outputs
from edgert.ready import open_spans

_GPU = "gpu"
_FORMS: Mapping[Device, tuple[str, ...]] = {"cpu": (ORT, FP16, FLOAT), "gpu": (_GPU, FP16, FLOAT)}
_TENSORRT_MODES = {_GPU: "INT8", FP16: "FP16", FLOAT: "FP32"}
"""Form on a GPU → what TensorRT may compute it in, inside ONNX Runtime:
https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization."""


def served_of(item: Item, device: Device, max_batch: int | None = None) -> list[Served]:
    """A model as Triton is to run it: by its engines, where a board compiled some, else by ONNX Runtime.

    Triton cannot deal frames to several engines, so each of them is a model of its own.
    """
    plans = item.plans if device == "gpu" else ()
    form = next(name for name in _FORMS[device] if name in item.forms)
    model = load(item.forms[form])
    spans = open_spans(model, item.config)
    served = Served(
        item.name,
        inputs(model),
        outputs(model),
        b"" if plans else to_bytes(model),
        device=device,
        instances=_instances(item, device),
        threads=item.config.threads if device == "cpu" else None,
        precision=_TENSORRT_MODES[form] if item.packed is not None and device == "gpu" else "",
        shapes={name: span.usual for name, span in spans.items()} or next(iter(item.config.profiles.values()), {}),
        max_batch=max_batch,
        usual_batch=max((span.most[0] for span in spans.values() if span.most), default=USUAL_BATCH),
        labels=item.files["labels"].read_bytes() if "labels" in item.files else b"",
        is_classifier=isinstance(item.config.task, ClassifyTask),
        unsaid=(*item.work, *(_tuned(item) if device == "cpu" else ())),
    )
    if plans:
        return [_by_engine(served, item, plan) for plan in plans]
    built = _built(item) if device == "gpu" else ()
    return [replace(served, unsaid=(*served.unsaid, *_placed(item), *built))]


def _by_engine(served: Served, item: Item, plan: Plan) -> Served:
    """By one engine; under the model's own name where there is no other."""
    total = sum(one.weight for one in item.plans)
    several = (f"engines: clients deal {plan.weight} of {total} frames here",) if len(item.plans) > 1 else ()
    return replace(
        served,
        name=served.name if not several else f"{served.name}-{item.plans.index(plan)}-{plan.place}",
        backend="tensorrt",
        content=plan.path.read_bytes(),
        dla_core=plan.dla_core,
        unsaid=(*served.unsaid, *several, "that an engine runs on the machine that compiled it, and on no other"),
    )


def _instances(item: Item, device: Device) -> int:
    """As many as the placement has replicas on the processor."""
    asked = item.config.placement
    return len(asked.replicate) if device == "cpu" and isinstance(asked, ReplicateConfig) else 1


def _tuned(item: Item) -> tuple[str, ...]:
    """What ``edgert build --tune`` found, or the file says, of how ONNX Runtime works inside."""
    found = item.config.tuning.model_dump(mode="json", exclude_defaults=True)
    return (f"tuning: {' '.join(setting(key, value) for key, value in found.items())}",) if found else ()


def _built(item: Item) -> tuple[str, ...]:
    """What the file tells TensorRT's builder, which here is inside ONNX Runtime."""
    found = item.config.tensorrt.model_dump(mode="json", exclude_defaults=True)
    return (f"tensorrt: {' '.join(setting(key, value) for key, value in found.items())}",) if found else ()


def _placed(item: Item) -> tuple[str, ...]:
    places = " and ".join("+".join(engine["accelerators"]) for engine in item.engines)
    return (f"its placement on {places}: here it runs in one place",) if item.uses_dla else ()
