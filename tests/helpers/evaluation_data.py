"""The evaluation data: real models and photos that do not come with the project.

They lie in the folder that ``EDGERT_DATA`` names. Without it there are none, as in a stranger's clone. A test that
needs a part that is not there is skipped and says which. Only this module reads the variable; conftest.py marks every
test that uses this module with ``data``.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edgert.backend.ort import Function
from edgert.config.pipeline_file import parse_input
from edgert.graph import Model, inputs, load
from edgert.memory import Counter, lend
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array
from edgert.stages.preprocess import Preprocessor

FOLDER = Path(os.environ.get("EDGERT_DATA") or os.devnull).absolute()
"""The folder of the evaluation data; a path under which nothing can exist where ``EDGERT_DATA`` is not set."""
INPUTS = {
    "deeplab_v3_mnv2_05": "stretch rgb mean=127.5 std=127.5",
    "fastestdet": "stretch area bgr std=255",
    "mobilenet_v1_025_224": "center_crop crop=0.875 rgb mean=127.5 std=127.5",
    "mobilenet_v2_quant": "center_crop crop=0.875 rgb mean=123.675,116.28,103.53 std=58.395,57.12,57.375",
    "nanodet_m_320": "letterbox bgr pad=0 mean=103.53,116.28,123.675 std=57.375,57.12,58.395",
    "person_reid_retail_0288": "stretch bgr",
    "ppocr_mobile_v2_det_ch": "letterbox rgb mean=123.675,116.28,103.53 std=58.395,57.12,57.375",
    "squeezenet_fp32": "center_crop crop=0.875 bgr mean=104,117,123",
    "ultraface_rfb_320": "stretch rgb mean=127 std=128",
    "yolox_nano_416": "letterbox top_left bgr",
}
"""Model → how its input is filled from an image."""


def data(*parts: str) -> Path:
    """Return a file or folder of the evaluation data; skip the test without it."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(parts)} of the evaluation data; set EDGERT_DATA to the folder that has it")
    return path


def frame(image: U8) -> Frame:
    height, width = image.shape[:2]
    return Frame("photo", 0, 0, 0, width, height, "bgr", (image,), lend(image, Counter()))


@dataclass(frozen=True)
class Photo:
    """A photo and its true boxes: (N, 4) x1, y1, x2, y2 in pixels, and (N,) categories."""

    path: Path
    boxes: npt.NDArray[np.float64]
    categories: npt.NDArray[np.int64]

    @property
    def image(self) -> U8:
        return read(self.path)


def read(path: Path) -> U8:
    image = cv2.imread(str(path))
    assert image is not None, path
    return image.astype(np.uint8, copy=False)


def photos(name: str, limit: int | None = None) -> list[Photo]:
    """The first ``limit`` photos of ``coco_val`` or ``coco_calib``."""
    table = json.loads(data("images", f"{name}.json").read_text())
    found = []
    for image in table["images"][:limit]:
        rows = [one for one in table["annotations"] if one["image_id"] == image["id"]]
        boxes = np.array([one["bbox"] for one in rows], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        categories = np.array([one["category_id"] for one in rows], np.int64)
        found.append(Photo(data("images", name, image["file_name"]), boxes, categories))
    return found


def feeds(
    name: str, model: Model, count: int, *, first: int = 0, step: int = 1, folder: str = "coco_val", fill: str = ""
) -> list[dict[str, Array]]:
    """Every so many photos of a folder as the model's input, filled as in ``INPUTS`` unless ``fill`` says how."""
    (spec,) = inputs(model)
    tensor = np.zeros(spec.shape, np.float32)  # type: ignore[arg-type,type-var]
    preprocessor, found = Preprocessor(parse_input(fill or INPUTS[name]), tensor), list[dict[str, Array]]()
    for file in sorted(data("images", folder).iterdir())[first::step][:count]:
        preprocessor.into(0, frame(read(file)))
        found.append({spec.name: tensor.copy()})
    return found


class Network:
    """A model of the evaluation data on ONNX Runtime, one thread, its input filled as edgert fills it."""

    def __init__(self, name: str, shape: tuple[int, ...] | None = None) -> None:
        model = load(data("models", f"{name}.onnx"))
        (spec,) = inputs(model)
        self._function, self._name = Function(model), spec.name
        self._tensor = np.zeros(shape or spec.shape, np.float32)  # type: ignore[arg-type,type-var]
        self._preprocessor = Preprocessor(parse_input(INPUTS[name]), self._tensor)

    def run(self, image: U8) -> tuple[list[Array], Geometry]:
        geometry = self._preprocessor.into(0, frame(image))
        return [output[0] for output in self._function({self._name: self._tensor}).values()], geometry
