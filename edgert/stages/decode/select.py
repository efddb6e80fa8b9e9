"""From a task of the pipeline file to the decoder it asks for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from edgert.config.model import (
    ClassifyTask,
    DetectTask,
    EmbedTask,
    KeypointsTask,
    SegmentTask,
    TaskConfig,
)
from edgert.errors import ConfigError, nearest
from edgert.stages.decode.base import Decoder
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.custom import load_custom
from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.detection import Detector, Head
from edgert.stages.decode.detr import Detr
from edgert.stages.decode.embed import Embed
from edgert.stages.decode.fastestdet import FastestDet
from edgert.stages.decode.heatmap import Heatmap
from edgert.stages.decode.nanodet import NanoDet
from edgert.stages.decode.segment import SegmentArgmax, SegmentThreshold
from edgert.stages.decode.shape import Shapes, Size
from edgert.stages.decode.ssd import Ssd
from edgert.stages.decode.yolo_pose import YoloPose
from edgert.stages.decode.yolov5 import YoloV5
from edgert.stages.decode.yolov8 import YoloV8
from edgert.stages.decode.yolox import YoloX

_HEADS: dict[str, type[Head]] = {
    "yolox": YoloX,
    "yolov5": YoloV5,
    "yolov8": YoloV8,
    "yolov10": Decoded,
    "nanodet": NanoDet,
    "ssd": Ssd,
    "fastestdet": FastestDet,
    "detr": Detr,
}
_NOT_OPTIONS = ("label_count",)


class CheckedDecoder(Decoder, Protocol):
    """A decoder that can say before the first picture whether it fits a model."""

    def check(self, shapes: Shapes, network: Size) -> None:
        """Args: shapes of the outputs without the batch dimension, and the network's (width, height).

        Raises:
            ModelError: the outputs are not what this decoder reads.
            ConfigError: there are fewer labels than classes.
        """
        ...


def decoder_for(
    task: TaskConfig, labels: tuple[str, ...], where: str = "", search: Path | None = None
) -> CheckedDecoder:
    """The decoder a task asks for.

    Args:
        labels: names of the classes, or of the points for ``keypoints``; empty when there are none.
        where: the task's place in the pipeline file, for errors.
        search: folder of the pipeline file, where ``python:`` looks first.

    Raises:
        ConfigError: an option the decoder does not know, or a user's function that cannot be loaded.
    """
    if isinstance(task, DetectTask):
        return Detector(_head(task, len(labels), where), task.score, task.iou, task.limit, labels)
    if isinstance(task, ClassifyTask):
        return Classify(task.classify, task.top, labels)
    if isinstance(task, SegmentTask):
        return SegmentArgmax(labels) if task.segment == "argmax" else SegmentThreshold(task.threshold, labels)
    if isinstance(task, KeypointsTask):
        return _keypoints(task, labels)
    if isinstance(task, EmbedTask):
        return Embed(task.embed == "l2")
    return load_custom(task.python, task.args, where, search)


def _keypoints(task: KeypointsTask, names: tuple[str, ...]) -> CheckedDecoder:
    if task.keypoints == "heatmap":
        return Heatmap(task.score, names)
    return YoloPose(task.score, task.iou, task.limit, names)


def _head(task: DetectTask, label_count: int, where: str) -> Head:
    kind: Any = _HEADS[task.detect]  # each a dataclass, which a Protocol cannot say
    settings = dict(task.options)
    names = [field.name for field in fields(kind)]
    known = [name for name in names if name not in _NOT_OPTIONS]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"decoder {task.detect!r} has no option {name!r}{nearest(str(name), known)}",
                why=f"its options: {', '.join(known) or 'none'}",
                where=where,
            )
    if "label_count" in names:
        settings["label_count"] = label_count
    try:
        head: Head = TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"option {option!r} of decoder {task.detect!r} cannot be {first['input']!r}", why=first["msg"], where=where
        ) from error
    return head
