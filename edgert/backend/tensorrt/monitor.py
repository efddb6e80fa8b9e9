"""TensorRT's progress, handed on; told since 10.0."""

from __future__ import annotations

from collections.abc import Callable

from edgert.backend.tensorrt.result import Progress
from edgert.backend.tensorrt.trt_types import IProgressMonitor, Trt


def monitor_to(trt: Trt, progress: Callable[[Progress], bool]) -> IProgressMonitor:
    """A progress monitor.

    Args:
        progress: called at the start, at every step and at the end of a phase, from TensorRT's threads; the build is
            canceled when it gives False.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._phases: dict[str, tuple[str, int]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._phases[phase_name] = (parent_phase or "", num_steps)
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return self._tell(phase_name, step + 1)

        def phase_finish(self, phase_name: str) -> None:
            self._tell(phase_name, self._phases.get(phase_name, ("", 0))[1])

        def _tell(self, phase: str, step: int) -> bool:
            parent, steps = self._phases.get(phase, ("", 0))
            return progress(Progress(phase, parent, step, steps))

    return Monitor()
