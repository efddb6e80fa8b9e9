"""Which tactics are worth a try: what the pipeline file leaves open, on as many cores as the model has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgert.assemble import MOST_REPLICAS
from edgert.backend import Tuning
from edgert.config import ModelConfig
from edgert.tune.tactic import FORMS, ON_GPU, Tactic

ORT, ORT_CUDA = "ort", "onnxruntime-cuda"
FORMS_OF = {
    ORT: tuple(FORMS),
    "openvino": ("ort", "float"),
    ORT_CUDA: ("fp16", "float"),
    "tensorrt": ("fp16", "float"),
}
"""Backend → the forms it can run. OpenVINO turns float16 models back into float32 on a processor; the INT8 form is made
for ONNX Runtime's kernels, which a GPU has none of, and has zero points, which TensorRT takes none of."""
_FLIPS: Sequence[tuple[str, Any]] = (
    ("optimization", "extended"),
    ("optimization", "basic"),
    ("spinning", False),
    ("arena", False),
    ("prepacking", False),
    ("balance", True),
    ("parallel", True),
)
_GPU_FLIPS: Sequence[tuple[str, Any]] = (
    ("optimization", "extended"),
    ("optimization", "basic"),
    ("channels_last", False),
    ("conv_search", "heuristic"),
)
"""One step from a tactic in what ONNX Runtime does inside, on a processor and on a GPU."""
_FOR_THREADS = ("spinning", "balance", "parallel")
"""Steps that mean nothing to a single thread."""


@dataclass(frozen=True, slots=True)
class Freedom:
    """What a search may change.

    Attributes:
        default: what runs without it.
        backends, forms: to choose from.
        threads: altogether.
        fixed_threads, fixed_replicas: whether the file itself says how many.
        replicated: whether several frames may be worked on at a time.
        pinned: whether threads may be kept on cores.
        batches: form → how many frames it can take in one run, largest first; one where it is not here.
        left_out: what may not be changed, or cannot be here → why.
    """

    default: Tactic
    backends: tuple[str, ...]
    forms: tuple[str, ...]
    threads: int
    fixed_threads: bool = False
    fixed_replicas: bool = False
    replicated: bool = False
    pinned: bool = False
    batches: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def backends_of(config: ModelConfig) -> tuple[str, ...]:
    """The backends that a section allows: the one it names, else all."""
    return tuple(FORMS_OF) if config.backend == "auto" else (config.backend,)


def forms_of(precision: str, made: Collection[str]) -> tuple[str, ...]:
    """The forms that a section's precision allows: all that were made for ``auto``, else the one it names."""
    wanted = {"int8": ("ort",), "fp16": ("fp16",), "fp32": ("float",)}.get(precision, tuple(FORMS))
    found = tuple(name for name in FORMS if name in made and name in wanted)
    return found or ("float",)  # a file that is quantised already is run as it is


def structures(freedom: Freedom) -> tuple[Tactic, ...]:
    """Every backend, form, batch and sharing of the threads, the default first."""
    found = [
        Tactic(backend, form, replicas, threads, pinned, tuning, batch)
        for backend in freedom.backends
        for form in freedom.forms
        if form in FORMS_OF[backend]
        for replicas, threads, pinned in _shares(freedom, backend)
        for batch in freedom.batches.get(form, (1,))
        if batch == 1 or replicas == 1  # frames are dealt to replicas one by one
        for tuning in _tunings(backend, form, freedom.default.tuning)
    ]
    return tuple(dict.fromkeys([freedom.default, *found]))


def _tunings(backend: str, form: str, default: Tuning) -> tuple[Tuning, ...]:
    """With and without TF32, which is faster, and may be too far from float32."""
    may_round = (backend, form) == (ORT_CUDA, "float") and default.tf32
    return (default, replace(default, tf32=False)) if may_round else (default,)


def _shares(freedom: Freedom, backend: str) -> Iterator[tuple[int, int, bool]]:
    """(replicas, threads of each, pinned)."""
    total, default = freedom.threads, freedom.default
    if freedom.fixed_replicas:
        yield default.replicas, default.threads, False
        return
    if backend in ON_GPU:
        yield 1, total, False
        return
    yield from ((1, threads, False) for threads in ([total] if freedom.fixed_threads else _powers(total)))
    if not freedom.replicated:
        return
    for replicas in _powers(min(total, MOST_REPLICAS))[:-1]:
        yield replicas, total // replicas, False
        if freedom.pinned and replicas == total and backend == ORT:
            yield replicas, 1, True


def batches(most: int) -> tuple[int, ...]:
    """``most`` frames and fewer, down to one."""
    return tuple(_powers(most))


def _powers(most: int) -> list[int]:
    """``most`` and the powers of two below it, largest first."""
    return sorted({most, *(2**n for n in range(most.bit_length()) if 2**n < most)}, reverse=True)


def neighbours(tactic: Tactic, tried: Collection[Tactic]) -> Sequence[Tactic]:
    """Tactics that differ in one thing inside ONNX Runtime and were not tried; none for other backends."""
    flips = {ORT: _FLIPS, ORT_CUDA: _GPU_FLIPS}.get(tactic.backend, ())
    useless = _FOR_THREADS if tactic.threads == 1 else ()  # there is no pool of threads
    found = [
        replace(tactic, tuning=replace(tactic.tuning, **{key: value})) for key, value in flips if key not in useless
    ]
    return [one for one in found if one != tactic and one not in tried]


def lean(tactics: Sequence[Tactic]) -> Sequence[Tactic]:
    """The same with less memory: without ONNX Runtime's arena and second copies of weights."""
    return [
        replace(one, tuning=replace(one.tuning, arena=False, prepacking=False)) for one in tactics if one.backend == ORT
    ]
