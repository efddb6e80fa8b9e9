"""How long each kernel of a model takes, by ONNX Runtime's own profiler."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.backend.base import Array
from edgert.backend.ort.library import first_line, open_session, ort_errors, session_settings
from edgert.errors import BuildError
from edgert.graph.model import Model, to_bytes

_SUFFIX = "_kernel_time"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node of the optimised graph.

    Attributes:
        name: mostly of the node it was made from, or of the tensor that it writes, with something appended.
        time_ms: median of the runs.
    """

    name: str
    time_ms: float


def kernel_times(model: Model, feeds: Mapping[str, Array], runs: int, warm_up: int = 3) -> tuple[Kernel, ...]:
    """Kernels in the order in which they ran, on one thread: the caller's, which may be pinned.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
    """
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        settings = session_settings(1)
        settings.enable_profiling, settings.profile_file_prefix = True, str(Path(folder) / "run")
        session = open_session(to_bytes(model), settings, model)
        try:
            for _ in range(warm_up + runs):
                session.run(None, dict(feeds))
        except ort_errors() as error:
            where = str(model.path)
            raise BuildError("ONNX Runtime failed while running", why=first_line(error), where=where) from error
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return _kernels(events, warm_up)


def _kernels(events: list[dict[str, Any]], warm_up: int) -> tuple[Kernel, ...]:
    """One per name; ``dur`` is in microseconds (Chrome's trace event format)."""
    times_us: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            times_us.setdefault(name.removesuffix(_SUFFIX), []).append(float(event["dur"]))
    return tuple(Kernel(name, statistics.median(found[warm_up:]) / 1e3) for name, found in times_us.items())
