"""The models of the evaluation data that the quantization benchmarks use, wired as documented."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from check_models import RECIPES
from report import DATA

from edgert.config import DetectTask, ModelConfig
from edgert.dataset import FileDataset, feed_of, open_images
from edgert.graph import Model, load
from edgert.quantization.calibrated import prepare

ROOT = Path(__file__).parents[2]
IMAGENET = DATA / "images" / "imagenet"
COCO_CALIB = DATA / "images" / "coco_calib"
COCO_VAL = DATA / "images" / "coco_val.json"
NEEDED = ("models", "images/imagenet", "images/imagenet_labels.csv", "images/coco_calib", "images/coco_val.json")
OVERLAP = 0.6
"""Overlap above which a detector's weaker box is dropped."""


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the models that EDGERT_BENCH_MODELS names, by commas; all without it."""
    wanted = os.environ.get("EDGERT_BENCH_MODELS", "")
    return tuple(name for name in names if not wanted or name in wanted.split(","))


def rounds(usual: int) -> int:
    """How often to measure: EDGERT_BENCH_ROUNDS, to try a benchmark quickly, or as usual."""
    return int(os.environ.get("EDGERT_BENCH_ROUNDS", usual))


def model_config(name: str, **sections: object) -> ModelConfig:
    """The section of a pipeline file for a model on ONNX Runtime, with further sections (calibrate, quantize …)."""
    task, image, _ = RECIPES[name]
    written = yaml.safe_load(f"task: {{{task}}}\ninput: {{{image}}}\nbackend: ort")
    config = ModelConfig.model_validate({"onnx": model_path(name), **written, **sections})
    if isinstance(config.task, DetectTask):
        return config.model_copy(update={"task": config.task.model_copy(update={"iou": OVERLAP})})
    return config


def model_path(name: str) -> Path:
    return DATA / "models" / f"{name}.onnx"


def is_classifier(name: str) -> bool:
    return RECIPES[name][2] == "imagenet"


def calibration_folder(name: str) -> Path:
    return IMAGENET if is_classifier(name) else COCO_CALIB


@cache
def photos(name: str) -> FileDataset:
    images = open_images(calibration_folder(name))
    assert isinstance(images, FileDataset)
    return images


def some(images: FileDataset, first: int, count: int) -> FileDataset:
    part = slice(first, first + count)
    return FileDataset(images.paths[part], images.names[part])


def prepared(name: str) -> Model:
    """The float model that everything is made of: static, folded, of an opset that holds a scale per channel.

    ONNX Runtime's quantizer makes invalid graphs of models that list their weights among the inputs, and needs that
    opset too: it gets the same.
    """
    return prepare(load(model_path(name)))


def feeds(name: str, model: Model, first: int, count: int) -> Iterator[dict[str, np.ndarray]]:
    feed = feed_of(some(photos(name), first, count), model, model_config(name))
    for index in range(len(feed)):
        yield feed.feeds(index)
