"""An ordered chain of engines: the first that can run a model does, and the reasons of those before it are reported.

What was skipped is logged when it happens, and is part of the ``info`` of the engine that runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edgert.backend.base import Engine, Session
from edgert.board import Machine
from edgert.config.engine_choice import ORT, ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.errors import BuildError, DeviceError, ModelError, PlacementError

if TYPE_CHECKING:  # most pipelines start without it
    from edgert.backend.tensorrt.trt_backend import TrtBackend

# Several engines of one model, each with its share of the frames, as one.


class Replicated:
    """Engine that distributes frames over equal engines on several accelerators.

    The dispatcher reads :attr:`parts`; every other caller gets the first part.

    Args:
        parts: the engines, of equal inputs and outputs, and how many frames each gets of as many as there are weights
            in sum.
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
        """Close all engines."""
        for engine, _ in self.parts:
            engine.close()


log = logging.getLogger("edgert.backend")
CompiledT = TypeVar("CompiledT")
_REFUSALS = (BuildError, DeviceError, ModelError, PlacementError)
"""Errors after which the next engine is tried. Any other is not the engine's fault."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An engine that comes earlier in the chain and does not run.

    Attributes:
        engine: its name.
        why: in one line.
        model: the only one it does not run; empty where it runs none.
    """

    engine: str
    why: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.engine} skipped{f' for model {self.model}' if self.model else ''}: {self.why}"


@dataclass(frozen=True, slots=True)
class ChosenEngine(Generic[CompiledT]):
    """Engine, or chain of engines, chosen for a model.

    Attributes:
        engine: its name in the chain.
        compiled: what was made for it.
        skipped: those before it, with the reason.
    """

    engine: str
    compiled: CompiledT
    skipped: tuple[Skipped, ...]

    @property
    def info(self) -> dict[str, object]:
        """Details of the engine for the run summary."""
        return {"engine": self.engine, "skipped": [asdict(one) for one in self.skipped]}


class Chain:
    """The engines of one pipeline.

    Args:
        engines: their names, in order.
        why_not: why an engine cannot run on this machine; empty if it can. Called once for each.
        strict: an engine that would be skipped is an error.
        report: called with each engine that is skipped.
        where: of the chain, for errors.
        stop: when set, a compilation that fails was ended on purpose, and no other engine is tried.
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
        self._known: dict[str, str] = {}

    def unable(self) -> tuple[Skipped, ...]:
        """Return the engines before the first that can run here.

        Raises BuildError when ``strict``, and there is one; or no engine is left.
        """
        found: list[Skipped] = []
        for engine in self.engines:
            why = self._why(engine)
            if not why:
                return tuple(found)
            found.append(Skipped(engine, why))
        raise self._nothing_left(found)

    def first(self, model: str, make: Callable[[str], CompiledT]) -> ChosenEngine[CompiledT]:
        """Return the first engine that takes a model; ``make`` compiles it, and may be called for several.

        Raises BuildError when ``strict``, and an engine would be skipped; or none takes the model.
        """
        skipped: list[Skipped] = []
        fix = ""
        for name in self.engines:
            why = self._why(name)
            if why:
                skipped.append(Skipped(name, why))
                continue
            try:
                return ChosenEngine(name, make(name), tuple(skipped))
            except _REFUSALS as error:
                if self._stop.is_set():
                    raise
                if self.strict:
                    error.fix = "; ".join(filter(None, (error.fix, self._others(name, make))))
                    raise
                fix = error.fix if name == ORT else fix
                text = error.what + (f": {error.why}" if error.why else "") + (f" ({error.fix})" if error.fix else "")
                skipped.append(Skipped(name, " ".join(text.split()), model))
                self._report(skipped[-1])
        raise self._nothing_left(skipped, fix)

    def _why(self, engine: str) -> str:
        """Return why an engine cannot run here, and report it the first time; raise BuildError if ``strict``."""
        if engine not in self._known:
            why = self._known[engine] = self._why_not(engine)
            if why and self.strict:
                rest = self._after(engine)
                everywhere = f"engines: [{ORT}] runs everywhere"
                next_one = f"without --strict the next that can takes its place: {', '.join(rest)}"
                raise BuildError(
                    f"{engine} cannot run this here", why=why, where=self.where, fix=next_one if rest else everywhere
                )
            if why:
                self._report(Skipped(engine, why))
        return self._known[engine]

    def _others(self, engine: str, make: Callable[[str], object]) -> str:
        """Return the engines further down that take the model, as a fix; empty for none."""
        able = []
        for name in self._after(engine):
            with suppress(*_REFUSALS):
                if not self._why_not(name):
                    make(name)
                    able.append(name)
        return f"{' and '.join(able)} can run it: engines: [{', '.join(able)}]" if able else ""

    def _after(self, engine: str) -> tuple[str, ...]:
        return self.engines[self.engines.index(engine) + 1 :]

    def _nothing_left(self, skipped: Sequence[Skipped], fix: str = "") -> BuildError:
        return BuildError(
            "no engine of the chain can run this here",
            why="; ".join(map(str, skipped)) or "the chain is empty",
            where=self.where,
            fix=fix or f"put {ORT} at the end of engines:, which runs everywhere: pip install onnxruntime",
        )


def why_not(engine: str, machine: Machine, trt: TrtBackend | None, *, runs: bool = True) -> str:
    """Return why an engine cannot run on a machine, and what to install, in one line; empty if it can.

    Without ``runs``, return whether TensorRT can compile, which needs neither a GPU's memory nor PyCUDA. ``trt`` is for
    engines of TensorRT.
    """
    if engine == TENSORRT_DLA and machine.why_no_dla:
        return machine.why_no_dla
    if engine in (TENSORRT, TENSORRT_DLA):
        if machine.board is not None and machine.board.without_edgert:  # its TensorRT is too old, and no other fits it
            return machine.board.without_edgert
        assert trt is not None
        return trt.why_not() if runs else trt.why_no_library()
    if engine == ORT_CUDA:
        from edgert.backend.ort import cuda

        return cuda.why_not()
    return "" if engine == ORT else f"this edgert knows no engine {engine!r}"
