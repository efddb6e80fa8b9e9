"""The log, progress bar and stop event of work on a model.

Imports little: finding a model in the cache needs no more.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgert.config import ModelConfig
from edgert.errors import CalibrationError
from edgert.reporter import Bar
from edgert.stages.kinds import ByteTrackStage

Log = Callable[[str], object]
"""Called with one line about what is being done."""

CALIBRATE_FIX = "add calibrate: {images: FOLDER}, with 100 to 500 typical images"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The place of the model's section, and the log, bar and stop event of the work on it.

    Attributes:
        where: the section's place in its file, for errors.
        directory: the folder of that file, where ``python:`` looks for the user's own code.
        log: called with each step; the logger of this package by default.
        bar: moved while images are counted.
        stop: when set, ends the work with CalibrationError, within an image's time.
        tracking: how the pipeline tracks what the model finds, if it does: labels of a sequence are evaluated with it.
    """

    where: str = ""
    directory: Path | None = None
    log: Log = logging.getLogger("edgert.quantization").info
    bar: Bar | None = None
    stop: threading.Event | None = None
    tracking: ByteTrackStage | None = None

    @property
    def progress(self) -> Callable[[int, int | None, str], object] | None:
        """The bar, as calibration moves it."""
        bar = self.bar
        return None if bar is None else lambda done, total, _name: bar("calibrating", done, total or done)


ALONE = Run()
"""A run without progress bar or stop event: steps go to the log."""


def needs_images(
    config: ModelConfig,
    fix: str = CALIBRATE_FIX,
    why: str = "ranges are measured on typical images; invented ones would look fine and detect nothing",
) -> CalibrationError:
    """Return the error of a section that asks for INT8 and names no images to calibrate on."""
    return CalibrationError(f"INT8 of {config.onnx.name} needs images", why=why, fix=fix, code="E301")


Target = Literal["ort", "gpu"]
"""The engine that will run the model: ONNX Runtime, or TensorRT on a GPU."""


@dataclass(frozen=True, slots=True)
class Job:
    """Conversion of a model for a target; see :func:`edgert.quantization.conversion.in_precision`."""

    run: Run
    target: Target
    rows: int
    batched: bool
