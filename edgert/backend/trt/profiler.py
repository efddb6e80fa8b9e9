"""How long each layer takes, handed on: an object that TensorRT calls back, made when its module is known."""

from __future__ import annotations

from collections.abc import Callable

from edgert.backend.trt.vendor import IProfiler, Trt


def profiler_to(trt: Trt, sink: Callable[[str, float], object]) -> IProfiler:
    """A profiler that hands on the name and the milliseconds of every layer, once per run, in the order they run."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            sink(layer_name, ms)

    return Profiler()
