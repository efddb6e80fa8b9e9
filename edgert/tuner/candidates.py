"""Tactics, and the search space of those that the pipeline file allows on the model's cores."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgert.assemble import MOST_REPLICAS
from edgert.config import ModelConfig
from edgert.config.engine_choice import ReplicateConfig
from edgert.config.model_section import TuningConfig


def why_not(backend: str) -> str:
    """Return why a backend cannot run here and what to install; empty if it can, as far as known without a model."""
    if backend == "openvino":
        from edgert.backend import openvino

        return openvino.why_not()
    if backend == "onnxruntime-cuda":
        from edgert.backend.ort import cuda

        return cuda.why_not()
    if backend == "tensorrt":
        from edgert.backend.tensorrt.trt_backend import TrtBackend

        return TrtBackend().why_not()
    return ""


ON_GPU = ("onnxruntime-cuda", "tensorrt")
"""Backends that need only one engine, because a GPU runs several sessions one after the other."""
FORMS = {"float": "float", "fp16": "fp16", "ort": "int8"}
"""Form of a model in a bundle → name of its precision."""
_CHANGES = {
    "conv_search": "{} convolutions",
    "optimization": "{} optimizations",
    "spinning": "{} spinning",
    "arena": "no arena",
    "shared_arena": "shared arena",
    "prepacking": "no prepacking",
    "balance": "balanced",
    "parallel": "branches in parallel",
    "channels_last": "channels first",
    "tf32": "no TF32",
}
DEFAULT_TUNING = TuningConfig()
_WORDS = {False: "no", True: "constant", "runs": "brief"}


@dataclass(frozen=True, slots=True)
class Tactic:
    """Settings to run a model with, as a pipeline file could have them.

    Attributes:
        backend: name of the backend.
        form: form of the model, one of :data:`FORMS`.
        replicas: number of sessions that work on different frames at the same time.
        threads: number of threads of each replica.
        pinned: whether each replica is pinned to its own core.
        tuning: settings of ONNX Runtime.
        batch: number of frames in one run.
    """

    backend: str
    form: str
    replicas: int
    threads: int
    pinned: bool = False
    tuning: TuningConfig = DEFAULT_TUNING
    batch: int = 1

    @property
    def frames(self) -> int:
        """Number of frames in progress at a time, all of which determine a frame's latency."""
        return self.replicas * self.batch

    def __str__(self) -> str:
        """Return the tactic in words, such as ``"ort int8, 2 × 1 thread, pinned, no arena"``."""
        share = f"{self.replicas} × " if self.replicas > 1 else ""
        threads = f"{share}{self.threads} thread{'s' if self.threads > 1 else ''}"
        parts = [f"batches of {self.batch}"] if self.batch > 1 else []
        parts += ["pinned"] if self.pinned else []
        parts += [
            text.format(_WORDS.get(getattr(self.tuning, key), getattr(self.tuning, key)))
            for key, text in _CHANGES.items()
            if getattr(self.tuning, key) != getattr(DEFAULT_TUNING, key)
        ]
        return ", ".join([f"{self.backend} {FORMS.get(self.form, self.form)}", threads, *parts])

    def to_json(self) -> dict[str, Any]:
        """Return the tactic as JSON values."""
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, "tuning": self.tuning.model_dump()}

    @property
    def keys(self) -> dict[str, Any]:
        """Keys of a model's section, without ``onnx:``, and without the batch, which belongs to stages."""
        found = {
            "backend": self.backend,
            "threads": self.replicas * self.threads,
            "replicas": self.replicas,
            "tuning": self.tuning.model_dump(),
        }
        if self.pinned:
            found["placement"] = {"replicate": {f"cpu{number}": 1 for number in range(self.replicas)}}
        return found


def with_tactic(config: ModelConfig, tactic: Tactic) -> ModelConfig:
    """Return a model's section with the keys of a tactic."""
    found = {**tactic.keys, "tuning": tactic.tuning}
    if tactic.pinned:
        found["placement"] = ReplicateConfig.model_validate(found["placement"])
    return config.model_copy(update=found)


def overrides(name: str, tactic: Tactic, onnx: str, batching: Collection[str] = ()) -> list[str]:
    """Return a tactic of the model called ``name`` as arguments of ``--set``.

    ``onnx`` is a file with the tactic's form of the model. ``batching`` are the stages that run it in batches.
    """
    keys = {**tactic.keys, "onnx": onnx}
    found = [f"models.{name}.{key}={json.dumps(value)}" for key, value in keys.items()]
    size = f".max={tactic.batch}" if tactic.batch > 1 else "=null"
    return found + [f"stages.{stage}.batch{size}" for stage in batching]


ORT, ORT_CUDA = "ort", "onnxruntime-cuda"
FORMS_OF = {ORT: tuple(FORMS), "openvino": ("ort", "float"), ORT_CUDA: ("fp16", "float"), "tensorrt": ("fp16", "float")}
"""Backend → forms that it can run. OpenVINO converts FP16 models back to FP32 on a CPU. The INT8 form is made for ONNX
Runtime's CPU kernels, and has zero points, which TensorRT does not accept."""
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
    ("conv_search", "exhaustive"),
)
"""Settings of ONNX Runtime to try one at a time, on a CPU and on a GPU."""
_FOR_THREADS = ("spinning", "balance", "parallel")
"""Settings without effect on a single thread."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Search space of a model.

    Attributes:
        default: tactic without tuning.
        backends, forms: backends and forms to choose from.
        threads: total number of threads.
        fixed_threads, fixed_replicas: whether the file sets these numbers.
        replicated: whether there may be several replicas.
        pinned: whether threads may be pinned to cores.
        batches: form → batch sizes, largest first; 1 for a form that is not listed.
        left_out: what is not searched → why.
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
    """Return the backends that a section allows: the one that it names, or all."""
    return tuple(FORMS_OF) if config.backend == "auto" else (config.backend,)


def forms_of(precision: str, available: Collection[str]) -> tuple[str, ...]:
    """Return the available forms that a section's precision allows: the one that it names, or all for ``auto``."""
    wanted = {"int8": ("ort",), "fp16": ("fp16",), "fp32": ("float",)}.get(precision, tuple(FORMS))
    found = tuple(name for name in FORMS if name in available and name in wanted)
    return found or ("float",)  # a file that is already quantized runs as it is


def combinations(space: SearchSpace) -> tuple[Tactic, ...]:
    """Return every combination of backend, form, batch and threads per replica, the default first.

    TF32 is tried on and off, because it is faster but may differ too much from FP32.
    """
    default = space.default.tuning
    exact = default.model_copy(update={"tf32": False})
    found = [
        Tactic(backend, form, replicas, threads, pinned, tuning, batch)
        for backend in space.backends
        for form in space.forms
        if form in FORMS_OF[backend]
        for replicas, threads, pinned in _shares(space, backend)
        for batch in space.batches.get(form, (1,))
        if batch == 1 or replicas == 1  # the dispatcher gives single frames to replicas
        for tuning in ((default, exact) if (backend, form) == (ORT_CUDA, "float") else (default,))
    ]
    return tuple(dict.fromkeys([space.default, *found]))


def _shares(space: SearchSpace, backend: str) -> Iterator[tuple[int, int, bool]]:
    total, default = space.threads, space.default
    if space.fixed_replicas:
        yield default.replicas, default.threads, False
        return
    if backend in ON_GPU:
        yield 1, total, False
        return
    yield from ((1, threads, False) for threads in ([total] if space.fixed_threads else powers(total)))
    if not space.replicated:
        return
    for replicas in powers(min(total, MOST_REPLICAS))[:-1]:
        yield replicas, total // replicas, False
        if space.pinned and replicas == total and backend == ORT:
            yield replicas, 1, True


def powers(most: int) -> tuple[int, ...]:
    """Return ``most`` and the powers of two below it, largest first."""
    return tuple(sorted({most, *(2**n for n in range(most.bit_length()) if 2**n < most)}, reverse=True))


def neighbors(tactic: Tactic, tried: Collection[Tactic]) -> Sequence[Tactic]:
    """Return untried tactics that differ in one ONNX Runtime setting; empty for other backends."""
    flips = {ORT: _FLIPS, ORT_CUDA: _GPU_FLIPS}.get(tactic.backend, ())
    useless = _FOR_THREADS if tactic.threads == 1 else ()  # no thread pool
    found = [
        replace(tactic, tuning=tactic.tuning.model_copy(update={key: value}))
        for key, value in flips
        if key not in useless
    ]
    return [one for one in found if one != tactic and one not in tried]


def with_less_memory(tactics: Sequence[Tactic]) -> Sequence[Tactic]:
    """Return the tactics for ONNX Runtime without its arena and without prepacked copies of weights."""
    return [
        replace(one, tuning=one.tuning.model_copy(update={"arena": False, "prepacking": False}))
        for one in tactics
        if one.backend == ORT
    ]
