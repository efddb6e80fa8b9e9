"""A model as a function of arrays: for measuring models, where a runtime would use an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgert.backend.base import Array
from edgert.backend.ort.library import first_line, open_session, ort, ort_errors, session_settings
from edgert.backend.ort.section import OwnFunction
from edgert.errors import BuildError
from edgert.graph.model import Model, to_bytes
from edgert.graph.own import has_own

_FATAL = 4
"""Of ONNX Runtime's log levels; what it does not survive (https://onnxruntime.ai/docs/api/c/group___global.html)."""


class Function:
    """Runs a model on the CPU just as it stands; may be called from several threads at once.

    Unlike an engine it is not prepared or cached, it allocates its outputs anew on every call, and it gives their
    memory back with them.

    Args:
        threads: of one call.
        fused: lets ONNX Runtime rewrite the graph, Q/DQ pairs into integer kernels among the rest. Without it every
            node computes exactly what the ONNX standard says of it.
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

        self._session = OwnFunction(model, opened) if has_own(model.proto) else opened(model)
        self.inputs: tuple[str, ...] = tuple(item.name for item in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(item.name for item in self._session.get_outputs())

    def __call__(self, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs once.

        Args:
            feeds: input name → array; names that the model does not have are ignored.
            wanted: outputs to compute; all by default.

        Returns:
            Output name → array of the caller's own.

        Raises:
            BuildError: ONNX Runtime fails, or an input is missing or of another shape.
        """
        names = list(self.outputs if wanted is None else wanted)
        given = {name: feeds[name] for name in self.inputs if name in feeds}
        try:
            return dict(zip(names, self._session.run(names, given), strict=True))
        except ort_errors() as error:
            raise BuildError("ONNX Runtime failed while running", why=first_line(error), where=self._where) from error
