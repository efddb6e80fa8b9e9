"""Registry of each task's decoders, and the decoder of a task in a pipeline file.

A decoder is a frozen dataclass, imported when a model needs it. Fields with the name of a key in the task's section get
its value. ``labels`` and ``label_count`` come from the labels file. All other fields are the task's ``options``.
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
from edgert.user_code import constructor_errors, load_object

if TYPE_CHECKING:  # reading a pipeline file must not import NumPy or OpenCV
    from edgert.runtime.records import Record
    from edgert.stages.crop import Geometry
    from edgert.stages.decode.decoder import Array, CheckedDecoder, Shapes, Size

DETECT = {
    "yolox": "edgert.stages.decode.yolo:YoloX",
    "yolov5": "edgert.stages.decode.yolo:YoloV5",
    "yolov4": "edgert.stages.decode.yolo:YoloV4",
    "yolo-raw": "edgert.stages.decode.anchors:YoloRaw",
    "yolov8": "edgert.stages.decode.yolo:YoloV8",
    "yolov8-raw": "edgert.stages.decode.nanodet:YoloV8Raw",
    "yolov8-obb": "edgert.stages.decode.shaped:YoloV8Obb",
    "yolov8-seg": "edgert.stages.decode.instances:YoloV8Seg",
    "yolov5-seg": "edgert.stages.decode.instances:YoloV5Seg",
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
    "yolo-nas": "edgert.stages.decode.yolo:YoloNas",
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
    """Decoder of the user's own code, ``python: module:name``, called as ``function(outputs, geometry)``."""

    function: Callable[..., Record]
    args: Mapping[str, Any]

    def check(self, shapes: Shapes, network: Size) -> None:
        """Accept any outputs, because only the user's code knows what it can read."""

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        """Call the function. ``outputs`` are views of bound memory: it must copy what it keeps."""
        return self.function(outputs, geometry, **self.args)


@dataclass(frozen=True, slots=True)
class SubsetDecoder:
    """Decoder that reads some of a model's outputs."""

    decoder: CheckedDecoder
    places: tuple[int, ...]

    def check(self, shapes: Shapes, network: Size) -> None:
        self.decoder.check([shapes[place] for place in self.places], network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        return self.decoder([outputs[place] for place in self.places], geometry)


def checked_decoder(
    decoder: CheckedDecoder, shapes: Shapes, network: Size, names: Sequence[str] = ()
) -> CheckedDecoder:
    """Return a decoder that reads outputs of these shapes: the given one, or one that skips unneeded outputs.

    Raises:
        ModelError: the decoder cannot read the outputs.
        ConfigError: there are fewer or more labels than classes.
    """
    from edgert.stages.decode.needed import needed_outputs

    kept = None if isinstance(decoder, Custom) else needed_outputs(shapes, names)
    if kept is not None:
        few = SubsetDecoder(decoder, kept)
        try:
            few.check(shapes, network)
            return few
        except ModelError:  # it may read all of them
            pass
    decoder.check(shapes, network)
    return decoder


def decoder_for(
    task: TaskConfig, labels: tuple[str, ...], where: str = "", search: Path | None = None
) -> CheckedDecoder:
    """Return the decoder that a task names. ``python:`` searches the folder ``search`` first.

    Raises ConfigError: an unknown option, or a user's function that cannot be loaded.
    """
    if isinstance(task, PythonTask):
        loaded, args = load_object(task.python, where, search), task.args
        if isinstance(loaded, type):  # a class gets the arguments once, a function with every call
            with constructor_errors(f"cannot make an object of {task.python!r}", where):
                loaded, args = loaded(**args), {}
            if not callable(loaded):
                fix = "define __call__(outputs, geometry) in the class"
                raise ConfigError(f"an object of {task.python!r} cannot be called", where=where, fix=fix)
        return Custom(cast("Callable[..., Record]", loaded), dict(args))
    kind = DECODERS[verb_of(task)].get(value_of(task))
    if not isinstance(task, DetectTask):
        return cast("CheckedDecoder", _build(kind, task, labels, where))
    from edgert.stages.decode.detection import Detector

    # ``agnostic`` is an option of every detector; the others belong to its head.
    agnostic = _validate(bool, task.options.get(AGNOSTIC, False), task, where, AGNOSTIC)
    own = {key: value for key, value in task.options.items() if key != AGNOSTIC}
    head = _build(kind, task.model_copy(update={"options": own}), labels, where, (AGNOSTIC,))
    return Detector(head, task.score, task.iou, task.limit, labels, agnostic)


AGNOSTIC = "agnostic"
"""Option of every detector, and of ``yolo-pose``: whether boxes suppress those of other classes, too."""


def _build(kind: Any, task: Any, labels: tuple[str, ...], where: str, others: Sequence[str] = ()) -> Any:
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
    return _validate(kind, settings, task, where)


def _validate(kind: Any, value: Any, task: TaskConfig, where: str, option: str = "") -> Any:
    """Return a decoder of class ``kind`` with settings ``value``, or an option of this type.

    Raises ConfigError for invalid values.
    """
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
"""Tasks whose labels are names of classes, which exporters store; labels of ``keypoints`` name points."""
log = logging.getLogger(__name__)


def labels_of(config: ModelConfig, where: str = "") -> tuple[str, ...]:
    """Return names of a model's classes: the task's ``labels``, else those in the model file; empty without any.

    Raises ConfigError: see :func:`read_labels`.
    """
    if config.task.labels is not None:
        return read_labels(config.task.labels, where)
    from edgert.graph.metadata import characters, class_names, metadata_of  # imports NumPy

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

    Labels in the model file are ignored with a warning if their number is not that of the classes. Labels that the task
    names are then an error. ``names`` are the output names.

    Raises ModelError: the task's decoder cannot read the outputs. Raises ConfigError: there are fewer or more labels
    than classes, or see :func:`decoder_for`.
    """
    decoder = decoder_for(config.task, labels, where, search)
    try:
        return checked_decoder(decoder, shapes, network, names)
    except ConfigError as error:
        if config.task.labels is not None or not labels:
            raise
        log.warning("%s: the names in the model file are ignored: %s", where or config.onnx.name, error.what)
        return checked_decoder(decoder_for(config.task, (), where, search), shapes, network, names)


def read_labels(path: Path, where: str = "") -> tuple[str, ...]:
    """Return the names of a file, one per line, in the order of the model's classes.

    Blank lines at the end are ignored. Between names, a line of one space or one invisible character is that character,
    as in dictionaries of text models.

    Raises ConfigError: the file is missing, is not text, has no names, or a blank line between names, which would shift
    all later classes.
    """
    try:
        lines = [line if len(line) == 1 else line.strip() for line in read_text(path).split("\n")]
    except FileNotFoundError as error:
        fix = f"write one name per line into it, or use a list that comes with edgert: {', '.join(labels_names())}"
        hint = nearest(path.name, labels_names())
        raise ConfigError(f"no such file: {path}{hint}", why="labels are read from it", where=where, fix=fix) from error
    except (OSError, ConfigError) as error:
        why, fix = (f"{error.where}: {error.why}", error.fix) if isinstance(error, ConfigError) else (cause(error), "")
        raise ConfigError(f"cannot read labels from {path}", why=why, where=where, fix=fix) from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or "" in lines:
        why = f"line {lines.index('') + 1} is blank" if lines else "it is empty"
        raise ConfigError(f"{path} is not a list of labels", why=why, where=where, fix="write one class name per line")
    if unsafe := next(filter(CONTROL.search, lines), ""):  # names are printed, and terminals obey escape sequences
        why = f"line {lines.index(unsafe) + 1} holds control characters"
        raise ConfigError(f"{path} is not a list of labels", why=why, where=where, fix="remove them")
    return tuple(lines)
