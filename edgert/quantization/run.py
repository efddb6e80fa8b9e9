"""What every step of making a model INT8 shares: how its run is reported and stopped, and the images it needs."""

from __future__ import annotations

from collections.abc import Callable

from edgert.config import ModelConfig
from edgert.errors import CalibrationError

Tell = Callable[[str], object]
"""Called with one line about what is being done."""
Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""


def as_progress(bar: Bar) -> Callable[[int, int | None, str], None]:
    """A bar as what calibration calls with the images done, how many there are where that is known, and a name."""

    def progress(done: int, total: int | None, name: str) -> None:
        bar("calibrating", done, total or done)

    return progress


CALIBRATE_FIX = "add calibrate: {images: FOLDER}, with 100 to 500 typical images"
INVENTED = "ranges are measured on typical images; invented ones would look fine and detect nothing"


def needs_images(config: ModelConfig, fix: str = CALIBRATE_FIX, why: str = INVENTED) -> CalibrationError:
    """The error of a section that asks for INT8 and names no images to calibrate on."""
    return CalibrationError(f"INT8 of {config.onnx.name} needs images", why=why, fix=fix)
