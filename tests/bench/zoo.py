"""The models of the evaluation data that the quantisation benchmarks use, wired as documented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from bench_check import RECIPES
from report import DATA

from edgert.config import ModelConfig

IMAGENET = DATA / "images" / "imagenet"
COCO_CALIB = DATA / "images" / "coco_calib"


def model_config(name: str, **sections: object) -> ModelConfig:
    """The section of a pipeline file for a model, with further sections (calibrate, accuracy, precision)."""
    task, picture, _ = RECIPES[name]
    written = yaml.safe_load(f"task: {{{task}}}\ninput: {{{picture}}}")
    return ModelConfig.model_validate({"onnx": model_path(name), **written, **sections})


def model_path(name: str) -> Path:
    """The ONNX file of a model."""
    return DATA / "models" / f"{name}.onnx"


def calibration_folder(name: str) -> Path:
    """The photographs a model is calibrated on."""
    return IMAGENET if RECIPES[name][2] == "imagenet" else COCO_CALIB


def tensors(name: str, pictures: list[Path]) -> list[np.ndarray]:
    """What the runtime feeds the model for each picture: (1, …) float32 arrays."""
    import cv2

    from edgert.graph.load import load
    from edgert.graph.spec import inputs
    from edgert.memory import Counter, lend
    from edgert.runtime import Frame
    from edgert.stages.preprocess import Preprocessor

    (spec,) = inputs(load(model_path(name)))
    bound = np.zeros(tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape), np.float32)
    preprocessor = Preprocessor(model_config(name).input, bound)
    made = []
    for path in pictures:
        picture = cv2.imread(str(path))
        height, width = picture.shape[:2]
        preprocessor.into(0, Frame("x", 0, 0, 0, width, height, "bgr", (picture,), lend(picture, Counter())))
        made.append(bound.copy())
    return made
