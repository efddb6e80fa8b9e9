"""Log, progress bar and stop event of work on a model.

The module imports little, so that finding a model in the cache is fast.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgert.config import ModelConfig
from edgert.errors import CalibrationError
from edgert.graph import Model, operators, read
from edgert.reporter import Bar
from edgert.stages.kinds import ByteTrackStage

Log = Callable[[str], object]
"""Function that is called with a line about each step."""

CALIBRATE_FIX = "add calibrate: {images: FOLDER}, with 100 to 500 typical images"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Context of work on a model's section.

    Attributes:
        directory: folder of that file, in which ``python:`` finds the user's own code.
        stop: event that ends the work with CalibrationError, within an image's time.
        tracking: settings by which the pipeline tracks detections, used to evaluate labeled sequences; None for none.
    """

    where: str = ""
    directory: Path | None = None
    log: Log = logging.getLogger("edgert.quantization").info
    bar: Bar | None = None
    stop: threading.Event | None = None
    tracking: ByteTrackStage | None = None


DEFAULT_RUN = Run()
"""Run without progress bar or stop event; steps go to the log."""


def is_quantized(model: Model) -> bool:
    """Return whether the model has Q/DQ nodes or integer operators."""
    return any(node.op in operators.QDQ or operators.is_integer(node.op) for node in read(model).nodes)


def needs_images(
    config: ModelConfig,
    fix: str = CALIBRATE_FIX,
    why: str = "ranges are measured on typical images; with invented ones a model would detect nothing",
) -> CalibrationError:
    """Return the error of a section that asks for INT8 and names no images to calibrate on."""
    return CalibrationError(f"INT8 of {config.onnx.name} needs images", why=why, fix=fix, code="E301")


Target = Literal["ort", "gpu"]
"""Engine that will run the model: ONNX Runtime, or TensorRT on a GPU."""


@dataclass(frozen=True, slots=True)
class Job:
    """Conversion of a model for a target.

    Attributes:
        batched: whether an INT8 model must take several at once.
    """

    run: Run
    target: Target
    rows: int
    batched: bool
