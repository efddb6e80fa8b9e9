"""ONNX Runtime as its documentation shows it: what edgert's engine is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edgert.backend.base import Array
from edgert.backend.ort.library import first_line, ort, ort_errors
from edgert.errors import BuildError


def usual_run(path: Path, feeds: Mapping[str, Array], threads: int) -> tuple[str, Callable[[], Mapping[str, Array]]]:
    """A session with options as they are, but for the threads.

    Args:
        path: the ONNX file.
        feeds: input → array.

    Returns:
        ``"onnxruntime 1.31.1"``, and what runs it once: output → array of the caller's own.

    Raises:
        DeviceError: ONNX Runtime is not installed.
        BuildError: it cannot run the model.
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
