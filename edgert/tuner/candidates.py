"""Tactics, and those worth a try: what the pipeline file leaves open, on the cores that the model has."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from edgert.assemble import MOST_REPLICAS
from edgert.backend import DEFAULT_TUNING, Tuning
from edgert.config import ModelConfig
from edgert.config.engine_choice import ReplicateConfig
from edgert.config.model_section import TuningConfig

# Backends that cannot run models on this machine: a search reports each once and leaves it out.


def why_not(backend: str) -> str:
    """Return why a backend runs nothing here, and what to install, in one line; empty where it can.

    It is checked as far as possible without a model.
    """
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


# A tactic: settings that run a model on this machine, as keys that a pipeline file could have.

ON_GPU = ("onnxruntime-cuda", "tensorrt")
"""Backends that need one engine only: a GPU runs the work of several sessions one after the other."""
FORMS = {"float": "float", "fp16": "fp16", "ort": "int8"}
"""Form of a model in a bundle → the name of its precision."""
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
_WORDS = {False: "no", True: "constant", "runs": "brief"}


@dataclass(frozen=True, slots=True)
class Tactic:
    """Settings that a model is run with.

    Attributes:
        backend: as in the pipeline file.
        form: of the model, one of :data:`FORMS`.
        replicas: frames it works on at a time.
        threads: of each of them.
        pinned: whether each replica stays on a core of its own.
        tuning: for ONNX Runtime.
        batch: frames in one run.
    """

    backend: str
    form: str
    replicas: int
    threads: int
    pinned: bool = False
    tuning: Tuning = DEFAULT_TUNING
    batch: int = 1

    @property
    def frames(self) -> int:
        """Frames in progress at a time: each of them waits for all."""
        return self.replicas * self.batch

    def __str__(self) -> str:
        """Return ``"ort int8, 2 × 1 thread, pinned, no arena"``."""
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

    @property
    def keys(self) -> dict[str, Any]:
        """Keys of a model's section, without the file of its form and the batch, which belongs to stages."""
        found = {
            "backend": self.backend,
            "threads": self.replicas * self.threads,
            "replicas": self.replicas,
            "tuning": asdict(self.tuning),
        }
        if self.pinned:
            found["placement"] = {"replicate": {f"cpu{number}": 1 for number in range(self.replicas)}}
        return found


def tactic_of(data: Mapping[str, Any]) -> Tactic:
    """Return a tactic from its dict. Raises TypeError: the data is of another edgert, with keys more or fewer."""
    known = {field.name for field in fields(Tactic)}
    if set(data) != known:
        raise TypeError(f"a tactic has {sorted(known)}, not {sorted(data)}")
    return Tactic(**{**data, "tuning": Tuning(**data["tuning"])})


def applied(config: ModelConfig, tactic: Tactic) -> ModelConfig:
    """Return a model's section with a tactic's keys."""
    found = {**tactic.keys, "tuning": TuningConfig(**asdict(tactic.tuning))}
    if tactic.pinned:
        found["placement"] = ReplicateConfig.model_validate(found["placement"])
    return config.model_copy(update=found)


def overrides(name: str, tactic: Tactic, onnx: str, batching: Collection[str] = ()) -> list[str]:
    """Return the tactic as arguments of ``--set``.

    Args:
        name: of the model.
        tactic: to apply.
        onnx: file with the tactic's form.
        batching: the stages that run it in batches.
    """
    keys = {**tactic.keys, "onnx": onnx}
    found = [f"models.{name}.{key}={json.dumps(value)}" for key, value in keys.items()]
    size = f".max={tactic.batch}" if tactic.batch > 1 else "=null"
    return found + [f"stages.{stage}.batch{size}" for stage in batching]


ORT, ORT_CUDA = "ort", "onnxruntime-cuda"
FORMS_OF = {
    ORT: tuple(FORMS),
    "openvino": ("ort", "float"),
    ORT_CUDA: ("fp16", "float"),
    "tensorrt": ("fp16", "float"),
}
"""Backend → the forms it can run. OpenVINO converts float16 models back to float32 on a processor. The INT8 form is for
ONNX Runtime's CPU kernels, which a GPU lacks, and has zero points, which TensorRT does not take."""
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
"""One step from a tactic in what ONNX Runtime does inside, on a processor and on a GPU."""
_FOR_THREADS = ("spinning", "balance", "parallel")
"""Steps that have no effect on a single thread."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The search space of a model.

    Attributes:
        default: the tactic without tuning.
        backends, forms: to choose from.
        threads: altogether.
        fixed_threads, fixed_replicas: whether the file sets how many.
        replicated: whether several frames may be worked on at a time.
        pinned: whether threads may be pinned to cores.
        batches: form → how many frames it can take in one run, largest first; one where it is not listed.
        left_out: what may not be changed, or is not available here → why.
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
    """Return the backends that a section allows: the one it names, else all."""
    return tuple(FORMS_OF) if config.backend == "auto" else (config.backend,)


def forms_of(precision: str, made: Collection[str]) -> tuple[str, ...]:
    """Return the forms that a section's precision allows: all that were made for ``auto``, else the one it names."""
    wanted = {"int8": ("ort",), "fp16": ("fp16",), "fp32": ("float",)}.get(precision, tuple(FORMS))
    found = tuple(name for name in FORMS if name in made and name in wanted)
    return found or ("float",)  # a file that is quantized already is run as it is


def combinations(space: SearchSpace) -> tuple[Tactic, ...]:
    """Return every combination of backend, form, batch and threads per replica, the default first.

    TF32 is tried on and off: it is faster, and may differ too much from float32.
    """
    default = space.default.tuning
    exact = replace(default, tf32=False)
    found = [
        Tactic(backend, form, replicas, threads, pinned, tuning, batch)
        for backend in space.backends
        for form in space.forms
        if form in FORMS_OF[backend]
        for replicas, threads, pinned in _shares(space, backend)
        for batch in space.batches.get(form, (1,))
        if batch == 1 or replicas == 1  # the dispatcher gives frames to replicas one by one
        for tuning in ((default, exact) if (backend, form) == (ORT_CUDA, "float") else (default,))
    ]
    return tuple(dict.fromkeys([space.default, *found]))


def _shares(space: SearchSpace, backend: str) -> Iterator[tuple[int, int, bool]]:
    """Yield ``(replicas, threads_per_replica, pinned)`` combinations."""
    total, default = space.threads, space.default
    if space.fixed_replicas:
        yield default.replicas, default.threads, False
        return
    if backend in ON_GPU:
        yield 1, total, False
        return
    yield from ((1, threads, False) for threads in ([total] if space.fixed_threads else _powers(total)))
    if not space.replicated:
        return
    for replicas in _powers(min(total, MOST_REPLICAS))[:-1]:
        yield replicas, total // replicas, False
        if space.pinned and replicas == total and backend == ORT:
            yield replicas, 1, True


def batches(most: int) -> tuple[int, ...]:
    """Return ``most`` frames and fewer, down to one."""
    return tuple(_powers(most))


def _powers(most: int) -> list[int]:
    """Return ``most`` and the powers of two below it, largest first."""
    return sorted({most, *(2**n for n in range(most.bit_length()) if 2**n < most)}, reverse=True)


def neighbors(tactic: Tactic, tried: Collection[Tactic]) -> Sequence[Tactic]:
    """Return untried tactics that differ in one ONNX Runtime setting; none for other backends."""
    flips = {ORT: _FLIPS, ORT_CUDA: _GPU_FLIPS}.get(tactic.backend, ())
    useless = _FOR_THREADS if tactic.threads == 1 else ()  # there is no pool of threads
    found = [
        replace(tactic, tuning=replace(tactic.tuning, **{key: value})) for key, value in flips if key not in useless
    ]
    return [one for one in found if one != tactic and one not in tried]


def with_less_memory(tactics: Sequence[Tactic]) -> Sequence[Tactic]:
    """Return the same tactics with less memory: without ONNX Runtime's arena and second copies of weights."""
    return [
        replace(one, tuning=replace(one.tuning, arena=False, prepacking=False)) for one in tactics if one.backend == ORT
    ]
