"""Decoders that can read a model's outputs, and runs of one model with many settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from edgert.backend import Engine, Session, trial_run
from edgert.config import InputConfig, PythonTask, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.engine import output_shapes
from edgert.errors import ConfigError, EdgertError, ModelError
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoded import Decoded, Detr, PpYoloe
from edgert.stages.decode.decoder import F32, Array, CheckedDecoder, Size, as_f32, boxes_and_scores, shapes_of
from edgert.stages.decode.guess import Guess, guess, network_size, own_decoder
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.kinds import SubsetDecoder, checked_decoder, decoder_for
from edgert.stages.decode.needed import needed_outputs
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV5, YoloV8, YoloX
from edgert.stages.preprocess import Preprocessor
from edgert.wiring.photos import View
from edgert.wiring.prior import named_family
from edgert.wiring.settings import variants


def guesses(engine: Engine, label_count: int | None = None, declared: Guess | None = None) -> list[Guess]:
    """Return the decoders that fit shapes and names of the outputs: the declared one, then the likeliest first."""
    (image,) = engine.inputs
    names = [tensor.name for tensor in engine.outputs]
    is_batched = not engine.batched or engine.batched[0]
    shapes, dtypes = output_shapes(engine), [tensor.dtype for tensor in engine.outputs]
    looks = guess(shapes, names, image.shape[1:], label_count, is_batched=is_batched, dtypes=dtypes)
    family = named_family([image.name], names)
    decoder = family.reads[0] if family else ""
    if family and decoder not in map(str, looks):  # the outputs have an unusual size
        verb, _, kind = decoder.partition(": ")
        network = network_size(image.shape[1:])
        if network and _refusal(task_of(Guess(verb, kind, "", 1)), engine, network) is None:
            looks.append(Guess(verb, kind, f"{family.name} can have such outputs", 1))
    named = f", and its ends are named as {family.name} names them" if family else ""
    better = [
        replace(one, weight=one.weight + _NAMED_WEIGHT, reason=f"{one.reason}{named}")
        for one in looks
        if family and str(one) == decoder
    ]
    looks = sorted([*better, *(one for one in looks if str(one) != decoder)], key=lambda one: -one.weight)
    return looks if declared is None else [declared, *(look for look in looks if str(look) != str(declared))]


_NAMED_WEIGHT = 3
"""Weight of a decoder that names of inputs and outputs show, without their shapes."""


def readings(
    written: TaskConfig | None, engine: Engine, labels: tuple[str, ...], network: Size, declared: Guess | None = None
) -> list[TaskConfig]:
    """Return every task that can read the outputs: the written one first, then guesses, each with its variants.

    Raises ModelError: no decoder can read the outputs; the error names those that were tried.
    """
    if isinstance(written, PythonTask):
        return [written]
    looks = guesses(engine, len(labels) or None, declared)
    if declared and _refusal(task_of(looks[0]), engine, network) is not None:
        looks = looks[1:]  # the metadata contradict the graph
    verb = verb_of(written) if written else looks[0].task if looks else None
    tasks: list[TaskConfig] = [written] if written else []
    same = written and (verb_of(written), value_of(written))
    tasks += [task_of(one) for one in looks if one.task == verb and (one.task, one.decoder) != same]
    shapes = tuple(output_shapes(engine))
    refused = [_refusal(task, engine, network) for task in tasks]
    fitting = [task for task, why in zip(tasks, refused, strict=True) if why is None]
    if not fitting:
        got = ", ".join(str(list(shape)) for shape in shapes)
        pairs = zip(tasks, refused, strict=True)
        tried = "; ".join(f"{verb_of(task)}: {value_of(task)} ({why})" for task, why in pairs)
        others = ", ".join(f"'{found}' ({found.reason})" for found in looks)
        raise ModelError(
            f"no decoder can read outputs {got} of a {network[0]}x{network[1]} input",
            why=f"tried {tried}" if tried else "they do not look like those of any decoder",
            fix=f"they look like {others}" if others else own_decoder(shapes, network),
            code="E203",
        )
    distinct: list[tuple[TaskConfig, object]] = []  # the first of those that make equal decoders
    for task in (variant for one in fitting for variant in variants(one)):
        decoder = decoder_for(task, ())
        if all(decoder != other for _, other in distinct):
            distinct.append((task, decoder))
    return [task for task, _ in distinct]


def decoder_of(task: TaskConfig, labels: tuple[str, ...], engine: Engine, network: Size) -> CheckedDecoder:
    """Return the decoder of a task; without the labels where these are too few for the outputs."""
    try:
        return make_checked_decoder(task, labels, engine, network)
    except ConfigError:
        return make_checked_decoder(task, (), engine, network)


def make_checked_decoder(task: TaskConfig, labels: tuple[str, ...], engine: Engine, network: Size) -> CheckedDecoder:
    """Return the decoder of a task for the outputs of a model.

    Raises ModelError: it cannot read the outputs. Raises ConfigError: the labels do not fit.
    """
    names = [tensor.name for tensor in engine.outputs]
    return checked_decoder(decoder_for(task, labels), tuple(output_shapes(engine)), network, names)


_LEAST_PART, _MOST_PART = 0.05, 1.5
"""Range of the largest coordinate of boxes that are fractions of the input, which a box may slightly exceed."""
_WRONG_CORNERS, _MOST_SWAPPED = 0.1, 0.5
"""Fractions of boxes with swapped corners above which relative numbers, and those of pixels, cannot be corners."""
_LARGEST_LOG = 10.0
"""Bound above the logarithm of any size in cells."""
_MOST_EMPTY = 0.5
"""Fraction of queries in an empty image; a class that a sigmoid finds in more of them is "no object"."""
_RELATIVE = "its boxes are fractions of the input, not pixels: a run on an empty image showed it"
_DECODED = "its boxes are decoded in the graph: a run on an empty image showed sizes in pixels"
_DARKEST, _SUM_ERROR = -1.5, 0.01
"""Number below every image's range, and rounding error in the sum of probabilities."""
_CLASSES = "a run on an empty image gave scores of classes, not pixels"
_NO_OBJECT = "its last class is 'no object': a run on an empty image showed it"


def refine_tasks(
    tasks: Sequence[TaskConfig], engine: Engine, session: Session, network: Size
) -> tuple[list[TaskConfig], tuple[str, ...]]:
    """Return the tasks with what a run on an empty image shows, and a sentence on each kind of change.

    Boxes that are fractions of the input get ``boxes: relative``, and final ones that are not two corners ``order:
    cxcywh``. Decoded boxes in YOLOX's layout are read as YOLOv5's, and queries whose last class is most of the image
    get ``activation: softmax``. Heads with a row for every cell or query return all rows for an empty image, too.
    Behind the first task, those that would read most boxes with swapped corners are left out.
    """
    heads = [_refinable_head(task, engine, network) for task in tasks]
    if not any(heads):
        return list(tasks), ()
    outputs = run_on_empty_image(engine, session)
    found, notes = list[TaskConfig](), dict[str, None]()
    for task, read in zip(tasks, heads, strict=True):
        if read is not None:
            head, places = read
            with np.errstate(all="ignore"):  # numbers of a wrong decoder may overflow
                seen = _seen_changes(task, head, [outputs[index] for index in places], network)
            if seen is None and found:
                continue
            changes, note = seen or ({}, "")
            if any(getattr(task, key) != value for key, value in changes.items()):
                task = task.model_copy(update=changes)
                notes[note] = None
        if task not in found:  # a change may make two tasks equal
            found.append(task)
    return found, tuple(notes)


def seen_classes(engine: Engine, session: Session) -> Guess | None:
    """Return the guess of a segmentation, if three channels are no image for an empty image; None for other outputs."""
    looks = guesses(engine)
    maps = next((look for look in looks if look.task == "segment"), None)
    if maps is None or looks[0].task != "image":
        return None
    (place, *_) = needed_outputs(output_shapes(engine), [tensor.name for tensor in engine.outputs]) or (0,)
    values = as_f32(run_on_empty_image(engine, session)[place])
    total = values.sum(axis=0 if values.shape[0] == min(values.shape) else -1)
    is_darker, is_shared = values.min() < _DARKEST, values.min() >= 0 and np.abs(total - 1).max() < _SUM_ERROR
    return replace(maps, reason=_CLASSES) if is_darker or is_shared else None


def run_on_empty_image(engine: Engine, session: Session) -> list[Array]:
    """Return the outputs for a black image, without the batch dimension."""
    (image,) = session.inputs.values()
    image[...] = 0
    return [array[0] if batched else array for array, batched in zip(trial_run(session), engine.batched, strict=True)]


def _seen_changes(
    task: TaskConfig, head: Any, outputs: Sequence[Array], network: Size
) -> tuple[Mapping[str, object], str] | None:
    """Return the keys of a task that its outputs for an empty image show, and a sentence on them.

    None if most boxes would have swapped corners.
    """
    options = dict(getattr(task, "options", {}))
    if isinstance(head, YoloX):
        is_decoded = float(outputs[0][:, 2:4].max(initial=0.0)) > _LARGEST_LOG
        return ({"detect": "yolov5"} if is_decoded else {}), _DECODED
    if isinstance(head, Detr):
        roles = boxes_and_scores(shapes_of(outputs))
        scores = None if roles is None else as_f32(outputs[roles[1]])
        if scores is None or "activation" in options or not _has_no_object(scores):
            return {}, ""
        return {"options": {**options, "activation": "softmax"}}, _NO_OBJECT
    boxes = head.read(outputs, network, -np.inf).boxes
    swapped = float(np.mean((boxes[:, 2:] < boxes[:, :2]).any(axis=1))) if len(boxes) else 0.0
    if not hasattr(head, "boxes") or not _LEAST_PART < float(np.abs(boxes).max(initial=0.0)) <= _MOST_PART:
        return None if swapped > _MOST_SWAPPED else ({}, "")
    seen: dict[str, object] = {"boxes": "relative"}
    if value_of(task) == "yolov10" and "order" not in options and swapped > _WRONG_CORNERS:
        seen["order"] = "cxcywh"
    return {"options": {**options, **seen}}, _RELATIVE


def _has_no_object(logits: F32) -> bool:
    """Return whether a sigmoid would find the last class in most queries of an empty image, so that it is none."""
    is_probability = logits.min(initial=0.0) >= 0 and logits.max(initial=0.0) <= 1
    return not is_probability and len(logits) > 0 and float(np.mean(logits[:, -1] > 0)) > _MOST_EMPTY


def _refinable_head(task: TaskConfig, engine: Engine, network: Size) -> tuple[Any, Sequence[int]] | None:
    """Return the head of a task, which reads boxes as they are in the outputs, and the indices of its outputs.

    None stands for another kind of head.
    """
    plain = {key: one for key, one in getattr(task, "options", {}).items() if key not in ("boxes", "order")}
    try:
        decoder = make_checked_decoder(task.model_copy(update={"options": plain}), (), engine, network)
    except EdgertError:  # it reads other outputs
        return None
    places = decoder.places if isinstance(decoder, SubsetDecoder) else tuple(range(len(engine.outputs)))
    reads = decoder.decoder if isinstance(decoder, SubsetDecoder) else decoder
    head = YoloV8() if isinstance(reads, YoloPose) else getattr(reads, "head", None)
    known = isinstance(head, YoloV8 | YoloV5 | YoloX | YoloV8Obb | YoloV8Seg | Decoded | Detr | PpYoloe)
    return (head, places) if known else None


def task_of(found: Guess) -> TaskConfig:
    written: dict[str, object] = {found.task: found.decoder}
    if found.options:
        written["options"] = dict(found.options)
    task: TaskConfig = TypeAdapter(TaskConfig).validate_python(written)
    return task


def can_read(found: Guess, engine: Engine, network: Size) -> bool:
    return _refusal(task_of(found), engine, network) is None


def _refusal(task: TaskConfig, engine: Engine, network: Size) -> str | None:
    try:
        make_checked_decoder(task, (), engine, network)
    except EdgertError as error:
        return error.why or error.what
    return None


Answer = tuple[tuple[Array, ...], Geometry]
"""Copies of the outputs for one image, without the batch dimension, and the mapping to the view's pixels."""


class Trial:
    """Runs of a session on views, with a cache of answers: no run is repeated for an equal input."""

    def __init__(self, session: Session, batched: Sequence[bool], where: str, ran: Callable[[], None]) -> None:
        self._session, self._batched, self._where, self._ran = session, batched, where, ran
        (self._tensor,) = session.inputs.values()
        self._answers: dict[int, tuple[Array, ...]] = {}

    def answer(self, config: InputConfig, view: View) -> Answer:
        """Return the model's answer to a view with an input section.

        Raises ModelError: the model's input is not an image of that color and layout. Raises StageError: the image has
        another size, and ``resize: none`` is set.
        """
        preprocessor = Preprocessor(config, self._tensor, self._where)  # another may have changed the border
        geometry = preprocessor.into(0, view.frame)
        key = hash(self._tensor.tobytes())
        if key not in self._answers:
            pairs = zip(trial_run(self._session), self._batched, strict=True)
            self._answers[key] = tuple((array[0] if batched else array).copy() for array, batched in pairs)
            self._ran()
        return self._answers[key], geometry

    def forget(self) -> None:
        self._answers.clear()
