"""What INT8 of a model cannot do without."""

from __future__ import annotations

from edgert.config import ModelConfig
from edgert.errors import CalibrationError

CALIBRATE_FIX = "add calibrate: {images: FOLDER}, with 100 to 500 typical images"
INVENTED = "ranges are measured on typical images; invented ones would look fine and detect nothing"


def needs_images(config: ModelConfig, fix: str = CALIBRATE_FIX, why: str = INVENTED) -> CalibrationError:
    """The error of a section that asks for INT8 and names no images to calibrate on."""
    return CalibrationError(f"INT8 of {config.onnx.name} needs images", why=why, fix=fix)
