"""A single model without a pipeline: images in, typed records out.

edgert.Model("yolov8n.onnx")("street.jpg").boxes
"""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from edgert.config import InputConfig, PipelineFile, load_pipeline
from edgert.config.model_section import TaskConfig
from edgert.config.pipeline_file import parse_input, parse_task
from edgert.errors import ConfigError, StageError
from edgert.installation import labels_named
from edgert.pipeline import Pipeline
from edgert.reporter import OnProgress
from edgert.runtime import PixelFormat, Record
from edgert.stages.source.stills import read_image
from edgert.wiring.inferred import infer
from edgert.wiring.starter import guess_label_list, labels_beside

_LOG = logging.getLogger(__name__)
_STAGE = "see"


class Model:
    """A model that is called with images and returns what it finds in them.

    What is not given is read from the file, its exporter's metadata or its family, as ``edgert new`` does;
    :attr:`notes` says what was found out. A guess that nothing confirms is logged as a warning. Calls of several
    threads wait for each other. Leaving the ``with`` block, :meth:`close` and dropping the model free the engine.

    Args:
        path: the ONNX file.
        task: how its outputs are read, as after ``--task``: ``"detect yolov8"``, ``"classify auto top=3"``.
        labels: names of its classes: a sequence, the path of a file with one name a line, or a shipped list such as
            ``"coco"``.
        input: how images are prepared, as after ``--input``: ``"letterbox rgb std=255"``; or an ``InputConfig``.
        score: lowest score to report, 0 to 1, of tasks that have one; 0.25 by default.
        precision: ``fp32``, ``fp16`` or ``auto``: the fastest that keeps the accuracy.
        engines: engines to try in this order, as in a pipeline file; by default the best that is here.
        on_progress: called while TensorRT compiles the model, which happens once.

    Attributes:
        notes: how it is fed and read, and why, a sentence each; empty where task and input were given.

    Raises:
        ModelError: not an ONNX model, not one image as its input, or outputs that nothing can read.
        ConfigError: ``task``, ``labels``, ``input`` or ``score`` cannot be used, or do not fit the model.
        BuildError: no engine takes the model.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        task: str | None = None,
        labels: str | Path | Sequence[str] | None = None,
        input: str | InputConfig | None = None,
        score: float | None = None,
        precision: str = "auto",
        engines: Sequence[str] = (),
        on_progress: OnProgress | None = None,
    ) -> None:
        fed = parse_input(input, "input") if isinstance(input, str) else input
        read = None if task is None else parse_task(task, "task")
        names: Sequence[str] = () if labels is None or isinstance(labels, (str, Path)) else tuple(labels)
        named = str(labels) if isinstance(labels, (str, Path)) else ""
        self.notes: tuple[str, ...] = ()
        self._closed = False
        if read is None or fed is None:
            made = infer(Path(path), task=read)
            self.notes = (*made.task_notes, *made.input_notes)
            if not made.task_sure or not (made.sure or fed is not None):
                unsure = (made.task_notes if not made.task_sure else made.input_notes)[0]
                _LOG.warning("%s: guessed: %s; pass task= and input= if that is wrong", path, unsure)
            size = made.setting.input.model_copy(update={"size": made.size})
            read, fed = made.setting.task, size if fed is None else fed
            if labels is None and read.labels is None:
                names = labels_beside(made)
                named = "" if names or made.prior.declared.labels else guess_label_list(made)
        if score is not None:
            read = _with_score(read, score)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as listed:
            if names:
                listed.write("\n".join(names) + "\n")
                listed.flush()
                named = listed.name
            if named:
                read = read.model_copy(update={"labels": labels_named(named) or Path(named)})
            file = _pipeline_of(Path(path), read, fed, precision, engines)
            self._pipeline = Pipeline(file, on_progress=on_progress)
        weakref.finalize(self, self._pipeline.close)  # a model that is used without a with block, and dropped

    @overload
    def __call__(self, image: list[Any], *, format: PixelFormat | None = None) -> list[Record]: ...

    @overload
    def __call__(self, image: Any, *, format: PixelFormat | None = None) -> Record: ...

    def __call__(self, image: Any, *, format: PixelFormat | None = None) -> Record | list[Record]:
        """Return what the model finds in an image, or a list for a list of images.

        Args:
            image: (height, width, 3) uint8 BGR, as OpenCV reads it; the path of an image file; or anything else that
                :meth:`edgert.Pipeline.submit` takes. It may be of any size, and is only read.
            format: how the pixels of an array lie: bgr by default, rgb, gray, yuyv or nv12.

        Returns:
            The typed result of the task: :class:`~edgert.Detections`, :class:`~edgert.Classification`,
            :class:`~edgert.Segmentation`, :class:`~edgert.Keypoints`, :class:`~edgert.Embedding`, … Coordinates are
            pixels of the image. The record is the caller's.

        Raises:
            ConfigError: no such file, or it is no image.
            StageError: not an image; or the model was closed.
        """
        if self._closed:
            raise StageError("this model was closed", fix="make another edgert.Model of the file")
        if isinstance(image, list):
            results = self._pipeline.call_batch([_pixels(one) for one in image], format=format)
            return [result.outputs[_STAGE] for result in results]
        return self._pipeline(_pixels(image), format=format).outputs[_STAGE]

    def close(self) -> None:
        """Free the engine and its memory. Twice is once."""
        self._closed = True
        self._pipeline.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pipeline_of(
    path: Path, task: TaskConfig, input: InputConfig, precision: str, engines: Sequence[str]
) -> PipelineFile:
    """Return the pipeline that takes images from the program and runs the model on them."""
    stages = {"image": {"source": "api"}, _STAGE: {"infer": "model", "from": "image"}}
    model = {"onnx": path.absolute(), "task": {"embed": "none"}, "precision": precision}
    more = {"engines": list(engines)} if engines else {}
    file = load_pipeline({"name": "model", "models": {"model": model}, "stages": stages, **more})
    section = file.config.models["model"].model_copy(update={"task": task, "input": input})
    return replace(file, config=file.config.model_copy(update={"models": {"model": section}}))


def _with_score(task: TaskConfig, score: float) -> TaskConfig:
    if "score" not in type(task).model_fields:
        raise ConfigError(f"score={score:g} has no effect on this task", fix="leave score out")
    if not 0 <= score <= 1:
        raise ConfigError(f"score={score:g} cannot be", why="a score is from 0 to 1")
    return task.model_copy(update={"score": score})


def _pixels(image: Any) -> Any:
    """Return an image as it is, read from its file, or copied where it is a view whose pixels lie apart."""
    if isinstance(image, np.ndarray):
        if image.ndim > 3:
            fix = "a list of images gives a list: model(list(images))"
            raise StageError(f"one image is expected, not an array {list(image.shape)}", fix=fix)
        return np.ascontiguousarray(image)
    if not isinstance(image, (str, Path)):
        return image
    path, pixels = Path(image), read_image(Path(image))
    if pixels is None:
        fix = "a folder or a video is the source: of a pipeline"
        why = "OpenCV cannot decode it" if path.is_file() else "it is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"cannot read the image {str(image)!r}", why=why, fix=fix if path.exists() else "")
    return pixels
