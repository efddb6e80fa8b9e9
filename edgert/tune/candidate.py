"""Which tactics are worth a try: what the pipeline file leaves open, on as many cores as the model has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgert.assemble import MOST_REPLICAS
from edgert.backend import BACKENDS
from edgert.config import ModelConfig
from edgert.tune.tactic import FORMS, Tactic

ORT = "ort"
_USUAL = ("auto", ORT)
_FORMS_OF = {ORT: tuple(FORMS), "openvino": ("ort", "float")}
"""Backend → the forms it can run. OpenVINO turns float16 models back into float32 on a processor."""
_FLIPS: tuple[tuple[str, Any], ...] = (
    ("optimization", "extended"),
    ("optimization", "basic"),
    ("spinning", False),
    ("arena", False),
    ("prepacking", False),
    ("balance", True),
)
"""One step from a tactic in what ONNX Runtime does inside. Denormal numbers are left alone: it decides about them once
per process, by its first session."""


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
    """

    default: Tactic
    backends: tuple[str, ...]
    forms: tuple[str, ...]
    threads: int
    fixed_threads: bool = False
    fixed_replicas: bool = False
    replicated: bool = False
    pinned: bool = False


def backends_of(config: ModelConfig) -> tuple[str, ...]:
    """The backends that a section allows: the one it names, else all that run models on a processor."""
    return tuple(name for name in BACKENDS if name in _FORMS_OF) if config.backend == "auto" else (config.backend,)


def forms_of(precision: str, made: Collection[str]) -> tuple[str, ...]:
    """The forms that a section's precision allows: all that were made for ``auto``, else the one it names."""
    wanted = {"int8": ("ort",), "fp16": ("fp16",), "fp32": ("float",)}.get(precision, tuple(FORMS))
    found = tuple(name for name in FORMS if name in made and name in wanted)
    return found or ("float",)  # a file that is quantised already is run as it is


def structures(freedom: Freedom) -> tuple[Tactic, ...]:
    """Every backend, form and sharing of the threads, the default first."""
    found = [
        Tactic(backend, form, replicas, threads, pinned, freedom.default.tuning)
        for backend in freedom.backends
        for form in freedom.forms
        if form in _FORMS_OF[backend]
        for replicas, threads, pinned in _shares(freedom)
        if backend == ORT or not pinned
    ]
    return tuple(dict.fromkeys([freedom.default, *found]))


def _shares(freedom: Freedom) -> Iterator[tuple[int, int, bool]]:
    """(replicas, threads of each, pinned)."""
    total, default = freedom.threads, freedom.default
    if freedom.fixed_replicas:
        yield default.replicas, default.threads, False
        return
    yield from ((1, threads, False) for threads in ([total] if freedom.fixed_threads else _powers(total)))
    if not freedom.replicated:
        return
    for replicas in _powers(min(total, MOST_REPLICAS))[:-1]:
        yield replicas, total // replicas, False
        if freedom.pinned and replicas == total:
            yield replicas, 1, True


def _powers(most: int) -> list[int]:
    """``most`` and the powers of two below it, largest first."""
    return sorted({most, *(2**n for n in range(most.bit_length()) if 2**n < most)}, reverse=True)


def neighbours(tactic: Tactic, tried: Collection[Tactic]) -> Sequence[Tactic]:
    """Tactics that differ in one thing inside ONNX Runtime and were not tried; none for other backends."""
    if tactic.backend != ORT:
        return ()
    found = [replace(tactic, tuning=replace(tactic.tuning, **{key: value})) for key, value in _FLIPS]
    useless = {"spinning", "balance"} if tactic.threads == 1 else set()  # there is no pool of threads
    return [
        one for (key, _), one in zip(_FLIPS, found, strict=True)
        if key not in useless and one != tactic and one not in tried
    ]  # fmt: skip


def lean(tactics: Sequence[Tactic]) -> Sequence[Tactic]:
    """The same with less memory: without ONNX Runtime's arena and second copies of weights."""
    return [
        replace(one, tuning=replace(one.tuning, arena=False, prepacking=False)) for one in tactics if one.backend == ORT
    ]
