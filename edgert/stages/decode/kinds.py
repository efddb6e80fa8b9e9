"""The decoders of each task, and from a task of the pipeline file to the decoder that it asks for.

A decoder is a frozen dataclass, imported when a model is read with it. Fields that are called like a key of the task's
section get its value, ``labels`` and ``label_count`` what the labels file holds, and all others are the task's
``options``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from edgert.config.model_section import DetectTask, ModelConfig, PythonTask, TaskConfig, value_of, verb_of
from edgert.errors import CONTROL, ConfigError, ModelError, cause, nearest
from edgert.installation import labels_names
from edgert.kinds import DECODERS
from edgert.text_files import read_text
from edgert.user_code import load_object

if TYPE_CHECKING:  # reading a pipeline file needs the names only, and neither arrays nor images
    from edgert.runtime.records import Record
    from edgert.stages.crop import Geometry
    from edgert.stages.decode.decoder import Array, CheckedDecoder, Shapes, Size

DETECT = {
    "yolox": "edgert.stages.decode.yolo:YoloX",
    "yolov5": "edgert.stages.decode.yolo:YoloV5",
    "yolo-raw": "edgert.stages.decode.anchors:YoloRaw",
    "yolov8": "edgert.stages.decode.yolo:YoloV8",
    "yolov8-obb": "edgert.stages.decode.shaped:YoloV8Obb",
    "yolov8-seg": "edgert.stages.decode.instances:YoloV8Seg",
    "yolov10": "edgert.stages.decode.decoded:Decoded",
    "nanodet": "edgert.stages.decode.nanodet:NanoDet",
    "ssd": "edgert.stages.decode.decoded:Ssd",
    "fastestdet": "edgert.stages.decode.nanodet:FastestDet",
    "detr": "edgert.stages.decode.decoded:Detr",
    "scrfd": "edgert.stages.decode.faces:Scrfd",
    "retinaface": "edgert.stages.decode.faces:RetinaFace",
    "yunet": "edgert.stages.decode.faces:YuNet",
    "yolov5-face": "edgert.stages.decode.faces:YoloV5Face",
    "detr-seg": "edgert.stages.decode.instances:DetrSeg",
    "yolo-nas": "edgert.stages.decode.decoded:YoloNas",
    "ppyoloe": "edgert.stages.decode.decoded:PpYoloe",
    "detectnet": "edgert.stages.decode.anchors:DetectNet",
    "db": "edgert.stages.decode.text:DB",
    "mask-rcnn": "edgert.stages.decode.rcnn:MaskRcnn",
}
CLASSIFY = {
    **dict.fromkeys(("auto", "softmax", "logits"), "edgert.stages.decode.classify:Classify"),
    "multilabel": "edgert.stages.decode.classify:MultiLabel",
    "heads": "edgert.stages.decode.classify:Heads",
}
SEGMENT = {
    "argmax": "edgert.stages.decode.maps:SegmentArgmax",
    "threshold": "edgert.stages.decode.maps:SegmentThreshold",
}
KEYPOINTS = {
    "yolo-pose": "edgert.stages.decode.yolo:YoloPose",
    "yolov7-pose": "edgert.stages.decode.poses:YoloV7Pose",
    "heatmap": "edgert.stages.decode.maps:Heatmap",
    "simcc": "edgert.stages.decode.poses:SimCC",
    "movenet": "edgert.stages.decode.poses:MoveNet",
    "trt-pose": "edgert.stages.decode.poses:TrtPose",
    "landmarks": "edgert.stages.decode.poses:Landmarks",
    "keypoint-rcnn": "edgert.stages.decode.rcnn:KeypointRcnn",
}
EMBED = dict.fromkeys(("l2", "none"), "edgert.stages.decode.classify:Embed")
TEXT = {"ctc": "edgert.stages.decode.text:CTC"}
DEPTH = dict.fromkeys(("inverse", "metric", "relative"), "edgert.stages.decode.dense:Depth")
IMAGE = dict.fromkeys(("unit", "byte", "signed"), "edgert.stages.decode.dense:ImageToImage")
ANOMALY = {"map": "edgert.stages.decode.dense:Anomaly"}


@dataclass(frozen=True, slots=True)
class Custom:
    """The user's own, ``python: module:name``: calls ``function(outputs, geometry)``, which returns the record."""

    function: Callable[..., Record]
    args: Mapping[str, Any]

    def check(self, shapes: Shapes, network: Size) -> None:
        """Accept any outputs: only the user's code knows what it can read."""

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        """Call the function. ``outputs`` are views of bound memory: it must copy what it keeps."""
        return self.function(outputs, geometry, **self.args)


@dataclass(frozen=True, slots=True)
class Beside:
    """A decoder of some outputs of a model that has others beside them.

    Attributes:
        decoder: reads them.
        places: of the outputs that it reads, among all.
    """

    decoder: CheckedDecoder
    places: tuple[int, ...]

    def check(self, shapes: Shapes, network: Size) -> None:
        """See :meth:`CheckedDecoder.check`."""
        self.decoder.check([shapes[place] for place in self.places], network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        return self.decoder([outputs[place] for place in self.places], geometry)


def checked_decoder(
    decoder: CheckedDecoder, shapes: Shapes, network: Size, names: Sequence[str] = ()
) -> CheckedDecoder:
    """Return a decoder that reads outputs of these shapes: the given one, or one that skips unneeded outputs.

    Args:
        decoder: of the task.
        shapes: of the outputs without the batch dimension.
        network: its (width, height).
        names: of the outputs; may be empty.

    Raises:
        ModelError: the outputs are not what the decoder reads.
        ConfigError: fewer or more labels than classes.
    """
    from edgert.stages.decode.needed import needed_outputs

    kept = None if isinstance(decoder, Custom) else needed_outputs(shapes, names)
    if kept is not None:
        few = Beside(decoder, kept)
        try:
            few.check(shapes, network)
            return few
        except ModelError:  # it reads all of them
            pass
    decoder.check(shapes, network)
    return decoder


def decoder_for(
    task: TaskConfig, labels: tuple[str, ...], where: str = "", search: Path | None = None
) -> CheckedDecoder:
    """Return the decoder that a task names.

    Args:
        task: the task's section.
        labels: names of the classes, or of the points for ``keypoints``; empty when there are none.
        where: the task's place in the pipeline file, for errors.
        search: folder of the pipeline file, where ``python:`` looks first.

    Raises:
        ConfigError: an option the decoder does not know, or a user's function that cannot be loaded.
    """
    if isinstance(task, PythonTask):
        loaded, args = load_object(task.python, where, search), task.args
        if isinstance(loaded, type):  # made once with its arguments; a function gets them with every call
            try:
                loaded, args = loaded(**args), {}
            except TypeError as error:
                raise ConfigError(
                    f"{task.python!r} cannot be made from its args", why=str(error), where=where
                ) from error
            if not callable(loaded):
                fix = "give the class __call__(outputs, geometry)"
                raise ConfigError(f"a {task.python!r} cannot be called", where=where, fix=fix)
        return Custom(cast("Callable[..., Record]", loaded), dict(args))
    kind = DECODERS[verb_of(task)].get(value_of(task))
    if not isinstance(task, DetectTask):
        return cast("CheckedDecoder", _made(kind, task, labels, where))
    from edgert.stages.decode.detection import Detector

    # What every detector understands is the detector's, the rest its head's.
    agnostic = _checked(bool, task.options.get(AGNOSTIC, False), task, where, AGNOSTIC)
    own = {key: value for key, value in task.options.items() if key != AGNOSTIC}
    head = _made(kind, task.model_copy(update={"options": own}), labels, where, (AGNOSTIC,))
    return Detector(head, task.score, task.iou, task.limit, labels, agnostic)


AGNOSTIC = "agnostic"
"""An option of every detector, and of ``yolo-pose``: boxes suppress those of other classes, too."""


def _made(kind: Any, task: Any, labels: tuple[str, ...], where: str, others: Sequence[str] = ()) -> Any:
    """Return the decoder with the task's keys, labels and options; ``others`` are further known options."""
    given = {key: getattr(task, key) for key in type(task).model_fields if key not in ("options", "labels")}
    given |= {"labels": labels, "label_count": len(labels)}
    names = [field.name for field in fields(kind)]
    known = [*(name for name in names if name not in given), *others]
    name = value_of(task)
    for option in task.options:
        if option not in known:
            raise ConfigError(
                f"decoder {name!r} has no option {option!r}{nearest(str(option), known)}",
                why=f"its options: {', '.join(known) or 'none'}",
                where=where,
            )
    settings = {key: value for key, value in given.items() if key in names} | task.options
    return _checked(kind, settings, task, where)


def _checked(kind: Any, value: Any, task: TaskConfig, where: str, option: str = "") -> Any:
    """Return a decoder with these settings, or an option of this kind. Raises ConfigError for invalid values."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        option = option or ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"option {option!r} of decoder {value_of(task)!r} cannot be {first['input']!r}",
            why=first["msg"],
            where=where,
        ) from error


_CLASSES = ("detect", "classify", "segment")
"""Tasks whose labels are names of classes, as exporters store them; those of keypoints are the points'."""
log = logging.getLogger(__name__)


def labels_of(config: ModelConfig, where: str = "") -> tuple[str, ...]:
    """Return names of a model's classes: the task's ``labels``, else those in the model file; empty without any.

    Raises:
        ConfigError: like :func:`read_labels`.
    """
    if config.task.labels is not None:
        return read_labels(config.task.labels, where)
    from edgert.graph.metadata import characters, class_names, metadata_of  # whose package wants arrays

    verb = verb_of(config.task)
    read = characters if verb == "text" else class_names if verb in _CLASSES else None
    return read(metadata_of(config.onnx)) if read else ()


def fitting_decoder(
    config: ModelConfig,
    labels: tuple[str, ...],
    shapes: Shapes,
    network: Size,
    where: str = "",
    search: Path | None = None,
    names: Sequence[str] = (),
) -> CheckedDecoder:
    """Return the decoder of a model's task, checked against its outputs.

    Labels of the model file are ignored, and a line is logged, where they are too few for the outputs. Labels that the
    task names are then refused. ``names`` are those of the outputs.

    Raises:
        ModelError: the outputs are not what the task's decoder reads.
        ConfigError: fewer or more labels than classes, or like :func:`decoder_for`.
    """
    decoder = decoder_for(config.task, labels, where, search)
    try:
        return checked_decoder(decoder, shapes, network, names)
    except ConfigError as error:
        if config.task.labels is not None or not labels:
            raise
        log.warning("%s: the names in the model file are left out: %s", where or config.onnx.name, error.what)
        return checked_decoder(decoder_for(config.task, (), where, search), shapes, network, names)


def read_labels(path: Path, where: str = "") -> tuple[str, ...]:
    """Return the names of a file, one per line, in the order of the model's classes.

    Blank lines at the end do not count. Between names, a line of one space or one invisible character is that
    character, as in dictionaries of text models.

    Raises:
        ConfigError: no such file, not text, no names, or a blank line between names (all later classes would shift).
    """
    try:
        lines = [line if len(line) == 1 else line.strip() for line in read_text(path).split("\n")]
    except FileNotFoundError as error:
        fix = f"write one name a line into it, or take a list that comes with edgert: {', '.join(labels_names())}"
        hint = nearest(path.name, labels_names())
        raise ConfigError(f"no such file: {path}{hint}", why="labels are read from it", where=where, fix=fix) from error
    except (OSError, ConfigError) as error:
        why, fix = (f"{error.where}: {error.why}", error.fix) if isinstance(error, ConfigError) else (cause(error), "")
        raise ConfigError(f"cannot read labels from {path}", why=why, where=where, fix=fix) from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or "" in lines:
        why = f"line {lines.index('') + 1} is blank" if lines else "it is empty"
        raise ConfigError(f"{path} is not a list of labels", why=why, where=where, fix="write one class name a line")
    if strange := next(filter(CONTROL.search, lines), ""):  # they are printed, and a terminal obeys escape sequences
        why = f"line {lines.index(strange) + 1} holds control characters"
        raise ConfigError(f"{path} is not a list of labels", why=why, where=where, fix="remove them")
    return tuple(lines)
