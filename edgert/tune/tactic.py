"""One way of running a model on this machine, as keys that a pipeline file could have."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from edgert.backend import USUAL, Tuning
from edgert.config import ModelConfig
from edgert.config.model import TuningConfig
from edgert.config.placement import ReplicateConfig

ON_GPU = ("onnxruntime-cuda", "tensorrt")
"""Backends that one engine is enough for: what several sessions put on a GPU, it does one after the other."""
FORMS = {"float": "float", "fp16": "fp16", "ort": "int8"}
"""Form of a model in a bundle → what people call its precision."""
_TOLD = {
    "spinning": "no spinning",
    "arena": "no arena",
    "shared_arena": "shared arena",
    "prepacking": "no prepacking",
    "balance": "balanced",
    "parallel": "branches in parallel",
    "channels_last": "channels first",
    "tf32": "no TF32",
}


@dataclass(frozen=True, slots=True)
class Tactic:
    """How a model is run.

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
    tuning: Tuning = USUAL
    batch: int = 1

    @property
    def frames(self) -> int:
        """Frames that are under way at a time: each of them waits for all of these."""
        return self.replicas * self.batch

    def __str__(self) -> str:
        """``"ort int8, 2 × 1 thread, pinned, no arena"``."""
        share = f"{self.replicas} × " if self.replicas > 1 else ""
        threads = f"{share}{self.threads} thread{'s' if self.threads > 1 else ''}"
        return ", ".join([f"{self.backend} {FORMS.get(self.form, self.form)}", threads, *self._more()])

    def _more(self) -> list[str]:
        told = [f"batches of {self.batch}"] if self.batch > 1 else []
        told += ["pinned"] if self.pinned else []
        if self.tuning.conv_search != USUAL.conv_search:
            told.append(f"{self.tuning.conv_search} convolutions")
        if self.tuning.optimization != USUAL.optimization:
            told.append(f"{self.tuning.optimization} optimizations")
        return told + [text for key, text in _TOLD.items() if getattr(self.tuning, key) != getattr(USUAL, key)]

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a model's section that say the same, but for the file of its form and the batch, which stages
        have."""
        found = {
            "backend": self.backend,
            "threads": self.replicas * self.threads,
            "replicas": self.replicas,
            "tuning": asdict(self.tuning),
        }
        if self.pinned:
            found["placement"] = {"replicate": {f"cpu{number}": 1 for number in range(self.replicas)}}
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def tactic_of(data: Mapping[str, Any]) -> Tactic:
    """What :meth:`Tactic.to_json` gave. Raises TypeError for data of another edgert, with keys more or fewer."""
    known = {field.name for field in fields(Tactic)}
    if set(data) != known:
        raise TypeError(f"a tactic has {sorted(known)}, not {sorted(data)}")
    return Tactic(**{**data, "tuning": Tuning(**data["tuning"])})


def applied(config: ModelConfig, tactic: Tactic) -> ModelConfig:
    """A model's section with a tactic's keys."""
    found = {**tactic.keys, "tuning": TuningConfig(**asdict(tactic.tuning))}
    if tactic.pinned:
        found["placement"] = ReplicateConfig.model_validate(found["placement"])
    return config.model_copy(update=found)


def overrides(name: str, tactic: Tactic, onnx: str, batching: Collection[str] = ()) -> list[str]:
    """The same as arguments of ``--set``, for the model ``name`` with its form in the file ``onnx``.

    Args:
        batching: the stages that run it in batches.
    """
    keys = {**tactic.keys, "onnx": onnx}
    found = [f"models.{name}.{key}={json.dumps(value)}" for key, value in keys.items()]
    size = f".max={tactic.batch}" if tactic.batch > 1 else "=null"
    return found + [f"stages.{stage}.batch{size}" for stage in batching]
