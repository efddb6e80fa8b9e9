"""A model as a function of arrays: for measuring models, where a runtime would use an engine."""

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.backend.base import Array, RunOnce
from edgert.backend.ort.custom_ops import CustomOpFunction
from edgert.backend.ort.runtime import first_line, open_session, ort, ort_errors, session_settings
from edgert.errors import BuildError
from edgert.graph import Model, to_bytes
from edgert.graph.type_inference import has_custom_operators

# How long each kernel of a model takes, by ONNX Runtime's own profiler.

_SUFFIX = "_kernel_time"
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node of the optimized graph.

    Attributes:
        name: mostly of the node it was made from, or of the tensor that it writes, with something appended.
        time_ms: median of the runs.
    """

    name: str
    time_ms: float


def kernel_times(model: Model, feeds: Mapping[str, Array], runs: int) -> tuple[Kernel, ...]:
    """Kernels in the order in which they ran, on one thread: the caller's, which may be pinned. Raises BuildError when
    ONNX Runtime cannot run the model."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        settings = session_settings(1)
        settings.enable_profiling, settings.profile_file_prefix = True, str(Path(folder) / "run")
        session = open_session(to_bytes(model), settings, model)
        try:
            for _ in range(_WARM_UP + runs):
                session.run(None, dict(feeds))
        except ort_errors() as error:
            where = str(model.path)
            raise BuildError("ONNX Runtime failed while running", why=first_line(error), where=where) from error
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times_us: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            times_us.setdefault(name.removesuffix(_SUFFIX), []).append(float(event["dur"]))  # Chrome's trace format: us
    return tuple(Kernel(name, statistics.median(found[_WARM_UP:]) / 1e3) for name, found in times_us.items())


_FATAL = 4
"""Of ONNX Runtime's log levels; what it does not survive (https://onnxruntime.ai/docs/api/c/group___global.html)."""


class Function:
    """Runs a model on the CPU just as it stands; may be called from several threads at once.

    Unlike an engine it is not prepared or cached, it allocates its outputs anew on every call, and it gives their
    memory back with them.

    Args:
        threads: of one call.
        fused: lets ONNX Runtime rewrite the graph, Q/DQ pairs into integer kernels among the rest. Without it every
            node computes exactly what the ONNX standard defines.
        quiet: raises what fails, and prints nothing of it.

    Raises:
        BuildError: ONNX Runtime cannot take the model.
    """

    def __init__(self, model: Model, *, threads: int = 1, fused: bool = True, quiet: bool = False) -> None:
        settings = session_settings(threads)
        settings.enable_cpu_mem_arena = False
        if quiet:
            settings.log_severity_level = _FATAL
        if not fused:
            settings.graph_optimization_level = ort().GraphOptimizationLevel.ORT_DISABLE_ALL
        self._where = str(model.path)

        def opened(part: Model) -> Any:
            return open_session(to_bytes(part), settings, part)

        self._session = CustomOpFunction(model, opened) if has_custom_operators(model.proto) else opened(model)
        self.inputs: tuple[str, ...] = tuple(item.name for item in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(item.name for item in self._session.get_outputs())

    def __call__(self, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs once on ``feeds`` (input → array; names that the model does not have are ignored), for the ``wanted``
        outputs, by default all. Returns output → array of the caller's own. Raises BuildError when ONNX Runtime fails,
        or an input is missing or of another shape."""
        names = list(self.outputs if wanted is None else wanted)
        given = {name: feeds[name] for name in self.inputs if name in feeds}
        try:
            return dict(zip(names, self._session.run(names, given), strict=True))
        except ort_errors() as error:
            raise BuildError("ONNX Runtime failed while running", why=first_line(error), where=self._where) from error


# ONNX Runtime as its documentation shows it: what edgert's engine is compared with.


def reference_run(path: Path, feeds: Mapping[str, Array], threads: int) -> tuple[str, RunOnce]:
    """A session of an ONNX file with options as they are, but for the threads.

    Returns ``"onnxruntime 1.31.1"``, and what runs it once on ``feeds`` (input → array): output → array of the caller's
    own. Raises DeviceError when ONNX Runtime is not installed, and BuildError when it cannot run the model.
    """
    settings = ort().SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    given = dict(feeds)
    try:
        session = ort().InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        session.run(None, given)
    except ort_errors() as error:
        raise BuildError("ONNX Runtime cannot run this model", why=first_line(error), where=str(path)) from error
    names = [one.name for one in session.get_outputs()]
    return f"onnxruntime {ort().__version__}", lambda: dict(zip(names, session.run(None, given), strict=True))
