"""Decoders that can read a model's outputs, and runs of one model with many settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from pydantic import TypeAdapter

from edgert.backend import Engine, Session
from edgert.config import InputConfig, PythonTask, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.engine import output_shapes
from edgert.errors import ConfigError, EdgertError, ModelError
from edgert.runtime import Frame
from edgert.runtime.frame import origin_of, separate_image
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.decoder import Array, CheckedDecoder, Size
from edgert.stages.decode.guess import Guess, guess, network_size, own_decoder
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.kinds import SubsetDecoder, checked_decoder, decoder_for
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV5, YoloV8
from edgert.stages.preprocess import Placement, Preprocessor, Resampler, place
from edgert.wiring.photos import View
from edgert.wiring.prior import named_family
from edgert.wiring.settings import variants


def guesses(engine: Engine, label_count: int | None = None, declared: Guess | None = None) -> list[Guess]:
    """Return the decoders that fit shapes and names of the outputs: the declared one, then the likeliest first.

    Args:
        engine: compiled model.
        label_count: number of known class names.
        declared: decoder that the metadata declare.
    """
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
    better = [
        replace(
            one,
            weight=one.weight + _NAMED_WEIGHT,
            reason=f"{one.reason}, and its ends are named as {family.name} names them",
        )
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

    Args:
        written: task of the pipeline file; None without one.
        engine: compiled model.
        labels: names of the classes.
        network: width and height of the input.
        declared: as for :func:`guesses`.

    Raises:
        ModelError: no decoder can read the outputs; the error names those that were tried.
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
            fix=f"they look like {others}"
            if others
            else f"task: {{python: module:function}}, a decoder of your own: {own_decoder(shapes, network)}",
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

    Raises:
        ModelError: it cannot read the outputs.
        ConfigError: the labels do not fit.
    """
    names = [tensor.name for tensor in engine.outputs]
    return checked_decoder(decoder_for(task, labels), tuple(output_shapes(engine)), network, names)


_LEAST_PART, _MOST_PART = 0.05, 1.5
"""Range of the largest coordinate of boxes that are fractions of the input, which a box may slightly exceed."""


_WRONG_CORNERS = 0.1
"""Fraction of boxes with swapped corners above which the numbers cannot be corners."""


def with_box_unit(
    tasks: Sequence[TaskConfig], engine: Engine, session: Session, network: Size
) -> tuple[list[TaskConfig], bool]:
    """Return the tasks with ``boxes: relative`` where boxes are fractions of the input, and whether any changed.

    Final boxes that are fractions but not two corners get ``order: cxcywh`` too. The engine is run once on an empty
    image, for which heads with a row for every cell return boxes as well.
    """
    read = [(task, _box_reader(task, engine, network)) for task in tasks]
    if not any(rows for _, rows in read):
        return list(tasks), False
    (image,) = session.inputs.values()
    image[...] = 0
    outputs = [array[0] if batched else array for array, batched in zip(session.run(1), engine.batched, strict=True)]
    found, is_changed = list[TaskConfig](), False
    for task, rows in read:
        options, seen = getattr(task, "options", {}), dict[str, object]()
        if rows is not None:
            with np.errstate(all="ignore"):  # numbers of a wrong decoder may overflow
                boxes = rows(outputs)
            if _LEAST_PART < float(np.abs(boxes).max(initial=0.0)) <= _MOST_PART:
                seen["boxes"] = "relative"
                if value_of(task) == "yolov10" and "order" not in options and _are_centers(boxes):
                    seen["order"] = "cxcywh"
        if {**options, **seen} != dict(options):
            task, is_changed = task.model_copy(update={"options": {**options, **seen}}), True
        found.append(task)
    return found, is_changed


def _are_centers(boxes: Array) -> bool:
    """Return whether boxes cannot be two corners, because the second is before the first in many of them."""
    return len(boxes) > 0 and float(np.mean((boxes[:, 2:] < boxes[:, :2]).any(axis=1))) > _WRONG_CORNERS


def _box_reader(task: TaskConfig, engine: Engine, network: Size) -> Callable[[Sequence[Array]], Array] | None:
    """Return a function that reads the boxes of all cells from the outputs; None for other kinds of heads."""
    plain = task
    if options := getattr(task, "options", {}):
        plain = task.model_copy(
            update={"options": {key: one for key, one in options.items() if key not in ("boxes", "order")}}
        )
    try:
        decoder = make_checked_decoder(plain, (), engine, network)
    except EdgertError:  # it reads other outputs
        return None
    places = decoder.places if isinstance(decoder, SubsetDecoder) else tuple(range(len(engine.outputs)))
    reads = decoder.decoder if isinstance(decoder, SubsetDecoder) else decoder
    head = YoloV8() if isinstance(reads, YoloPose) else getattr(reads, "head", None)
    if not isinstance(head, YoloV8 | YoloV5 | YoloV8Obb | YoloV8Seg | Decoded):
        return None
    return lambda outputs: head.read([outputs[place] for place in places], network, -np.inf).boxes


def task_of(found: Guess) -> TaskConfig:
    """Return the section ``task:`` of a guess."""
    written: dict[str, object] = {found.task: found.decoder}
    if found.options:
        written["options"] = dict(found.options)
    task: TaskConfig = TypeAdapter(TaskConfig).validate_python(written)
    return task


def can_read(found: Guess, engine: Engine, network: Size) -> bool:
    """Return whether the decoder of a guess can read the outputs."""
    return _refusal(task_of(found), engine, network) is None


def _refusal(task: TaskConfig, engine: Engine, network: Size) -> str | None:
    try:
        make_checked_decoder(task, (), engine, network)
    except EdgertError as error:
        return error.why or error.what
    return None


# Runs of one model with many settings: images are resized once, and no run is repeated.

Answer = tuple[tuple[Array, ...], Geometry]
"""Copies of the outputs for one image, without the batch dimension, and the mapping to the view's pixels."""


class Trial:
    """Runs of a session on views, with a cache of resized images and answers.

    Args:
        session: session whose only input is the image.
        batched: whether the first dimension is the batch, for every output.
        where: name of the model in errors.
        ran: function called after every run of the engine.
    """

    def __init__(self, session: Session, batched: Sequence[bool], where: str, ran: Callable[[], None]) -> None:
        self._session, self._batched, self._where, self._ran = session, batched, where, ran
        (self._tensor,) = session.inputs.values()
        self._small: dict[tuple[object, ...], Frame] = {}
        self._answers: dict[tuple[object, ...], tuple[Array, ...]] = {}

    def answer(self, config: InputConfig, view: View) -> Answer:
        """Return the model's answer to a view with an input section.

        Raises:
            ModelError: the model's input is not an image of that color and layout.
            StageError: the image has another size, and ``resize: none`` is set.
        """
        fitted = config.model_copy(update={"resize": "stretch"}) if config.resize == "center_crop" else config
        preprocessor = Preprocessor(fitted, self._tensor, self._where)  # another may have changed the border
        placement = place(view.frame, preprocessor.network, config)
        bordered = (placement.width, placement.height) != preprocessor.network
        border = (placement.left, placement.top, config.pad) if bordered else ()
        treatment = (border, config.color, config.mean, config.std, config.interpolation)
        key = (*_content_key(view, placement), *treatment)
        if key not in self._answers:
            preprocessor.into(0, self._resized(view, placement, config))
            pairs = zip(self._session.run(1), self._batched, strict=True)
            self._answers[key] = tuple((array[0] if batched else array).copy() for array, batched in pairs)
            self._ran()
        return self._answers[key], placement.geometry

    def forget(self) -> None:
        """Empty the cache."""
        self._small.clear()
        self._answers.clear()

    def _resized(self, view: View, placement: Placement, config: InputConfig) -> Frame:
        """Return the used part of a view, cut and resized so that placing it in the network changes nothing."""
        if config.resize == "none":
            return placement.frame
        key = (*_content_key(view, placement), config.interpolation)
        if key not in self._small:
            width, height = placement.width, placement.height
            resampler = Resampler(width, height, "bgr", config.interpolation)
            image = resampler.image(placement.frame, width, height)
            self._small[key] = separate_image(placement.frame, (image,), placement.frame.lease)
        return self._small[key]


def _content_key(view: View, placement: Placement) -> tuple[object, ...]:
    frame = placement.frame
    return id(view), origin_of(frame), frame.width, frame.height, placement.width, placement.height
