"""An ordered chain of engines, of which the first that can run a model is used.

Skipped engines are logged with their reasons, which are also part of the ``info`` of the engine that runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edgert.backend.base import Engine, Session
from edgert.board import Machine
from edgert.config.engine_choice import ORT, ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.errors import BuildError, DeviceError, ModelError, PlacementError

if TYPE_CHECKING:  # most pipelines start without it
    from edgert.backend.tensorrt.trt_backend import TrtBackend


class Replicated:
    """Engine that distributes frames over equal engines on several accelerators.

    The dispatcher reads :attr:`parts`; every other caller gets the first part. A part has a weight: its relative share
    of the frames.
    """

    def __init__(self, parts: Sequence[tuple[Engine, int]]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0][0]
        self.profiles, self.inputs, self.outputs = first.profiles, first.inputs, first.outputs
        self.outputs_known, self.batched, self.dynamic_batch = first.outputs_known, first.batched, first.dynamic_batch
        parts_info = [{"weight": weight, **engine.info} for engine, weight in self.parts]
        self.info: Mapping[str, Any] = {**first.info, "parts": parts_info}

    def session(self, profile: str | None = None) -> Session:
        """Return a session of the first engine. Raises ModelError for an unknown profile."""
        return self.parts[0][0].session(profile)

    def close(self) -> None:
        """Close all engines, even if one of them raises an error."""
        with ExitStack() as stack:
            for engine, _ in self.parts:
                stack.callback(engine.close)


log = logging.getLogger("edgert.backend")
CompiledT = TypeVar("CompiledT")
_REFUSALS = (BuildError, DeviceError, ModelError, PlacementError)
"""Errors after which the next engine is tried; others are not caused by the engine."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An engine that is earlier in the chain and does not run. ``model`` is empty if it runs none."""

    engine: str
    why: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.engine} skipped{f' for model {self.model}' if self.model else ''}: {self.why}"


@dataclass(frozen=True, slots=True)
class ChosenEngine(Generic[CompiledT]):
    """Engine chosen for a model."""

    engine: str
    compiled: CompiledT
    skipped: tuple[Skipped, ...]

    @property
    def info(self) -> dict[str, object]:
        """Data of the choice for the run summary."""
        return {"engine": self.engine, "skipped": [asdict(one) for one in self.skipped]}


class Chain:
    """The engines of one pipeline.

    Args:
        why_not: function that returns why an engine cannot run on this machine, empty if it can; called once for each.
        stop: event after which a compilation that fails was ended on purpose, so that no other engine is tried.
    """

    def __init__(
        self,
        engines: Sequence[str],
        why_not: Callable[[str], str],
        *,
        strict: bool = False,
        report: Callable[[Skipped], object] = lambda skipped: log.warning("%s", skipped),
        where: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        self.engines, self.strict, self.where = tuple(engines), strict, where
        self._why_not, self._report, self._stop = why_not, report, stop or threading.Event()
        self._reasons: dict[str, str] = {}

    def unavailable(self) -> tuple[Skipped, ...]:
        """Return the engines before the first that can run here.

        Raises BuildError if there are any and ``strict`` is set, or if no engine is left.
        """
        skipped: list[Skipped] = []
        for engine in self.engines:
            why = self._why_not_here(engine)
            if not why:
                return tuple(skipped)
            skipped.append(Skipped(engine, why))
        raise self._no_engine(skipped)

    def first_engine(
        self,
        model: str,
        compile_for: Callable[[str], CompiledT],
    ) -> ChosenEngine[CompiledT]:
        """Return the first engine that accepts a model; ``compile_for`` may be called for several.

        Raises BuildError if an engine would be skipped and ``strict`` is set, or if none accepts the model.
        """
        skipped: list[Skipped] = []
        fix = ""
        for name in self.engines:
            why = self._why_not_here(name)
            if why:
                skipped.append(Skipped(name, why))
                continue
            try:
                return ChosenEngine(name, compile_for(name), tuple(skipped))
            except _REFUSALS as error:
                if self._stop.is_set():
                    raise
                if self.strict:
                    error.fix = "; ".join(filter(None, (error.fix, self._next_engines(name))))
                    raise
                fix = error.fix if name == ORT else fix
                text = error.what + (f": {error.why}" if error.why else "") + (f" ({error.fix})" if error.fix else "")
                skipped.append(Skipped(name, " ".join(text.split()), model))
                self._report(skipped[-1])
        raise self._no_engine(skipped, fix)

    def _why_not_here(self, engine: str) -> str:
        """Return why an engine cannot run here, and report it the first time; raise BuildError if ``strict``."""
        if engine not in self._reasons:
            why = self._reasons[engine] = self._why_not(engine)
            if why and self.strict:
                fix = self._next_engines(engine) or f"engines: [{ORT}] runs everywhere"
                raise BuildError(f"{engine} cannot run this here", why=why, where=self.where, fix=fix)
            if why:
                self._report(Skipped(engine, why))
        return self._reasons[engine]

    def _next_engines(self, engine: str) -> str:
        """Return which engines are tried instead without ``strict``, for an error; empty for the last engine."""
        later = [one for one in self.engines[self.engines.index(engine) + 1 :] if not self._why_not(one)]
        return f"without --strict, the next possible engine is used: {', '.join(later)}" if later else ""

    def _no_engine(self, skipped: Sequence[Skipped], fix: str = "") -> BuildError:
        return BuildError(
            "no engine of the chain can run this here",
            why="; ".join(map(str, skipped)) or "the chain is empty",
            where=self.where,
            fix=fix or f"add {ORT} at the end of engines:, which runs everywhere: pip install onnxruntime",
        )


def why_not(engine: str, machine: Machine, trt: TrtBackend | None, *, runs: bool = True) -> str:
    """Return in one line why an engine cannot run on a machine, and what to install; empty if it can.

    Without ``runs``, TensorRT must only compile, for which the library is needed, but not PyCUDA.
    """
    if engine == TENSORRT_DLA and machine.why_no_dla:
        return machine.why_no_dla
    if engine in (TENSORRT, TENSORRT_DLA):
        if machine.board is not None and machine.board.without_edgert:  # its TensorRT is too old, without an update
            return machine.board.without_edgert
        assert trt is not None
        return trt.why_not() if runs else trt.why_no_library()
    if engine == ORT_CUDA:
        from edgert.backend.ort import cuda

        return cuda.why_not()
    return "" if engine == ORT else f"this edgert knows no engine {engine!r}"
