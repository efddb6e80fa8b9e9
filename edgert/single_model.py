"""A single model without a pipeline: images in, typed records out.

edgert.Model("yolov8n.onnx")("street.jpg").boxes
"""

import logging
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from edgert.config import InputConfig, PipelineFile, load_pipeline
from edgert.config.model_section import TaskConfig
from edgert.config.pipeline_file import parse_input, parse_task
from edgert.errors import ConfigError, StageError
from edgert.files import exists, is_file, memory_file
from edgert.installation import labels_named
from edgert.pipeline import Pipeline
from edgert.reporter import OnProgress
from edgert.runtime import PixelFormat, Record
from edgert.stages.source.stills import read_image
from edgert.wiring.inferred import infer
from edgert.wiring.starter import guess_label_list, labels_beside

_LOG = logging.getLogger(__name__)
_STAGE = "see"


class Model(AbstractContextManager["Model"]):
    """A model that is called with images and returns what it finds in them.

    Settings that are not given come from the file, its exporter's metadata or its family, as for ``edgert new``;
    :attr:`notes` explains them. A guess that nothing confirms is logged as a warning. Calls of several threads wait for
    each other. The engine is freed by :meth:`close`, at the end of a ``with`` block, or with the last reference.

    Args:
        path: path of the ONNX file.
        task: decoder of the outputs, as for ``--task``: ``"detect yolov8"``, ``"classify auto top=3"``.
        labels: class names: a sequence, the path of a file with one name a line, or the name of a shipped list such as
            ``"coco"``.
        input: preprocessing, as for ``--input``: ``"letterbox rgb std=255"``; or an ``InputConfig``.
        score: lowest score to report, 0 to 1, for tasks that have scores; 0.25 by default.
        precision: ``fp32``, ``fp16`` or ``auto``, which is the fastest that keeps the accuracy.
        engines: engines to try in this order, as in a pipeline file; default: the best of this machine.
        on_progress: function called while TensorRT compiles the model, which happens once.

    Attributes:
        notes: sentences on its task and input, and why; empty where both were given.

    Raises:
        ModelError: the file is no ONNX model, its input is not one image, or no decoder reads its outputs.
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
        config = parse_input(input, "input") if isinstance(input, str) else input
        decoding = None if task is None else parse_task(task, "task")
        names: Sequence[str] = () if labels is None or isinstance(labels, (str, Path)) else tuple(labels)
        labels_file = str(labels) if isinstance(labels, (str, Path)) else ""
        self.notes: tuple[str, ...] = ()
        self._closed = False
        if decoding is None or config is None:
            inferred = infer(Path(path), task=decoding)
            self.notes = (*inferred.task_notes, *inferred.input_notes)
            if not inferred.task_sure or not (inferred.sure or config is not None):
                unsure = (inferred.task_notes if not inferred.task_sure else inferred.input_notes)[0]
                _LOG.warning("%s: guessed: %s; pass task= and input= if that is wrong", path, unsure)
            decoding = inferred.setting.task
            config = config or inferred.setting.input.model_copy(update={"size": inferred.size})
            if labels is None and decoding.labels is None:
                names = labels_beside(inferred)
                labels_file = "" if names or inferred.prior.declared.labels else guess_label_list(inferred)
        if score is not None:
            decoding = _with_score(decoding, score)
        with memory_file("".join(f"{name}\n" for name in names).encode()) as written:  # the disk may be full
            if names:
                labels_file = f"/proc/self/fd/{written.fileno()}"
            if labels_file:
                decoding = decoding.model_copy(update={"labels": labels_named(labels_file) or Path(labels_file)})
            file = _pipeline_of(Path(path), decoding, config, precision, engines)
            self._pipeline = Pipeline(file, on_progress=on_progress)
        weakref.finalize(self, self._pipeline.close)  # for a model that is used without a with block

    @overload
    def __call__(self, image: list[Any], *, format: PixelFormat | None = None) -> list[Record]: ...

    @overload
    def __call__(self, image: Any, *, format: PixelFormat | None = None) -> Record: ...

    def __call__(self, image: Any, *, format: PixelFormat | None = None) -> Record | list[Record]:
        """Return what the model finds in an image, or a list for a list of images.

        Args:
            image: (height, width, 3) uint8 BGR, as OpenCV reads it; the path of an image file; or anything else that
                :meth:`edgert.Pipeline.submit` takes. It may have any size, and is only read.
            format: pixel format of an array: bgr by default, rgb, gray, yuyv or nv12.

        Returns:
            The typed result of the task: :class:`~edgert.Detections`, :class:`~edgert.Classification`,
            :class:`~edgert.Segmentation`, :class:`~edgert.Keypoints`, :class:`~edgert.Embedding`, … Coordinates are
            pixels of the image. The record belongs to the caller.

        Raises:
            ConfigError: the file does not exist or is no image.
            StageError: the object is not an image, or the model was closed.
        """
        if self._closed:
            raise StageError("this model was closed", fix="make another edgert.Model of the file")
        if isinstance(image, list):
            results = self._pipeline.call_batch([_pixels(one) for one in image], format=format)
            return [result.outputs[_STAGE] for result in results]
        return self._pipeline(_pixels(image), format=format).outputs[_STAGE]

    def close(self) -> None:
        """Free the engine and its memory. May be called twice."""
        self._closed = True
        self._pipeline.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _pipeline_of(
    path: Path, task: TaskConfig, input: InputConfig, precision: str, engines: Sequence[str]
) -> PipelineFile:
    """Return the pipeline that runs a model on images of the program."""
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
        raise ConfigError(f"score={score:g} is not possible", why="a score is from 0 to 1")
    return task.model_copy(update={"score": score})


def _pixels(image: Any) -> Any:
    """Return the pixels of an image: read from its file, or copied from an array that is not contiguous."""
    if isinstance(image, np.ndarray):
        if image.ndim > 3:
            fix = "pass a list, which returns a list: model(list(images))"
            raise StageError(f"one image is expected, not an array {list(image.shape)}", fix=fix)
        return np.ascontiguousarray(image)
    if not isinstance(image, (str, Path)):
        return image
    path, pixels = Path(image), read_image(Path(image))
    if pixels is None:
        fix = "for a folder or a video, write a pipeline with it as source:"
        why = "OpenCV cannot decode it" if is_file(path) else "it is a folder" if exists(path) else "no such file"
        raise ConfigError(f"cannot read the image {str(image)!r}", why=why, fix=fix if exists(path) else "")
    return pixels
