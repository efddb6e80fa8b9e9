"""Which decoder a model's outputs look like, from their shapes and names alone; every decoder says what it can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgert.errors import ConfigError, ModelError
from edgert.kinds import DECODERS
from edgert.stages.decode.decoder import Shapes, Size
from edgert.stages.decode.look import Fit, Look


@dataclass(frozen=True, slots=True)
class Guess:
    """One way to read a model's outputs; ``str(guess)`` is what to write under ``task``.

    Attributes:
        task: the task's verb, like ``detect``.
        decoder: its value, like ``yolox``.
        reason: why, in words.
        weight: 1 possible, 2 likely, 3 fits in every number; one more or less by labels and names.
        classes: how many classes the outputs would then tell apart; None when shapes do not say.
    """

    task: str
    decoder: str
    reason: str
    weight: int
    classes: int | None = None

    def __str__(self) -> str:
        return f"{self.task}: {self.decoder}"


def guess(
    output_shapes: Sequence[Sequence[int | None]],
    output_names: Sequence[str],
    input_shape: Sequence[int | None],
    n_labels: int | None,
) -> list[Guess]:
    """The decoders that can read such outputs, the likeliest first; empty when none can.

    Args:
        output_shapes: of one image, without the batch dimension; a dynamic dimension is None.
        output_names: as in the model; may be empty.
        input_shape: (C, H, W) or (H, W, C), without the batch dimension; dynamic dimensions are None.
        n_labels: how many labels there are, when known.

    Raises:
        ConfigError: a decoder of an installed package cannot be used.
    """
    shapes = tuple(tuple(size or 0 for size in shape) for shape in output_shapes)
    look = Look(shapes, " ".join(output_names).lower(), network_size(input_shape))
    found = [
        Guess(task, name, fit.reason, fit.weight + _for(task, fit, look, n_labels), fit.classes)
        for task, name, fit in _fits(look)
    ]
    return sorted(found, key=lambda one: -one.weight)


def network_size(input_shape: Sequence[int | None]) -> Size | None:
    """Width and height of (C, H, W) or (H, W, C); None when dynamic or not an image."""
    if len(input_shape) != 3:
        return None
    channels_first = input_shape[0] in (1, 3, 4) or input_shape[2] not in (1, 3, 4)
    height, width = input_shape[1:] if channels_first else input_shape[:2]
    return (width, height) if width and height else None


def _fits(look: Look) -> Iterator[tuple[str, str, Fit]]:
    """Task, decoder and reason. A class of several names, like ``softmax`` and ``logits``, stands for its first."""
    seen: set[type] = set()
    for task, registry in DECODERS.items():
        for name in registry.names():
            kind = registry.get(name)
            if kind not in seen:
                seen.add(kind)
                yield from ((task, name, fit) for fit in kind.fits(look))


def _for(task: str, fit: Fit, look: Look, n_labels: int | None) -> int:
    """Labels that match the classes and telling names speak for a guess, too few labels against it."""
    weight = int(any(word in look.names for word in _WORDS.get(task, ())))
    if n_labels and fit.classes is not None:
        weight += 1 if n_labels == fit.classes else -1 if n_labels < fit.classes else 0
    return weight


_WORDS = {
    "classify": ("prob", "softmax", "class", "logit", "fc"),
    "embed": ("embed", "feature", "feat", "descriptor"),
    "segment": ("seg", "mask", "sigmoid", "resizebilinear"),
    "keypoints": ("heat", "keypoint", "kpt", "pose"),
}


# What to say when outputs are not what a decoder reads, or labels not what a model knows.

_OWN = "no decoder of edgert reads these; write one, task: {python: module:function}, or export the model differently"


def wrong_shapes(decoder: str, reads: str, shapes: Shapes, network: Size) -> ModelError:
    """The error of a decoder that cannot read these outputs, with the decoder that probably can.

    Args:
        decoder: as the task names it, ``"detect: yolox"``.
        reads: the outputs it reads, in words.
    """
    width, height = network
    likely = [found for found in guess(shapes, (), (3, height, width), None) if str(found) != decoder]
    got = ", ".join(map(str, map(list, shapes))) or "no output"
    return ModelError(
        f"decoder '{decoder}' cannot read the model's outputs",
        why=f"it reads {reads}; got {got} from a {width}x{height} input (batch dimension left out)",
        fix=f"these look like '{likely[0]}': {likely[0].reason}" if likely else _OWN,
    )


def check_labels(class_count: int, labels: tuple[str, ...], where: str = "") -> None:
    """Refuses a list of labels that is too short for the model; no labels at all are fine.

    Raises:
        ConfigError: fewer labels than classes.
    """
    if 0 < len(labels) < class_count:
        raise ConfigError(
            f"{len(labels)} labels for {class_count} classes",
            why="every class of the model needs a name, one a line, in the order of training",
            where=where,
            fix="add the missing lines to the labels file, or leave labels out to see class numbers",
        )
