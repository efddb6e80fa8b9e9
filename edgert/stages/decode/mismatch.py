"""What to say when outputs are not what a decoder reads, or labels not what a model knows."""

from __future__ import annotations

from edgert.errors import ConfigError, ModelError
from edgert.stages.decode.guess import guess
from edgert.stages.decode.shape import Shapes, Size

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
