"""Who follows the work on a model, and what ends it. Imports little: who finds a model cached needs no more."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgert.config import ModelConfig
from edgert.errors import CalibrationError
from edgert.stages.kinds import ByteTrackStage

Log = Callable[[str], object]
"""Called with one line about what is being done."""
Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""

CALIBRATE_FIX = "add calibrate: {images: FOLDER}, with 100 to 500 typical images"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Where the model's section stands, who follows what is done with it, and what ends that.

    Attributes:
        where: the section's place in its file, for errors.
        directory: the folder of that file, where ``python:`` looks for the user's own code.
        log: called with each step; the logger of this package by default.
        bar: moved while images are counted.
        stop: ends whatever is being done with CalibrationError when set, within an image's time.
        tracking: how the pipeline tracks what the model finds, if it does: labels of a sequence are judged so.
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
"""Nobody follows it but the log."""


def needs_images(
    config: ModelConfig,
    fix: str = CALIBRATE_FIX,
    why: str = "ranges are measured on typical images; invented ones would look fine and detect nothing",
) -> CalibrationError:
    """The error of a section that asks for INT8 and names no images to calibrate on."""
    return CalibrationError(f"INT8 of {config.onnx.name} needs images", why=why, fix=fix)


Target = Literal["ort", "gpu"]
"""Who runs the model that is made: ONNX Runtime, or TensorRT on a GPU."""


@dataclass(frozen=True, slots=True)
class Job:
    """How a model is made, and what is to run it: as :func:`edgert.quantization.precision.in_precision` takes it."""

    run: Run
    target: Target
    rows: int
    batched: bool
