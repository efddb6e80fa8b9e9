"""From a task of the pipeline file to the decoder it asks for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from edgert.config.model_section import DetectTask, PythonTask, TaskConfig, value_of, verb_of
from edgert.errors import ConfigError, nearest
from edgert.kinds import DECODERS
from edgert.stages.decode.custom import load_custom
from edgert.stages.decode.decoder import Decoder, Shapes, Size
from edgert.stages.decode.detection import Detector


class CheckedDecoder(Decoder, Protocol):
    """A decoder that can say before the first image whether it fits a model."""

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
    if isinstance(task, PythonTask):
        return load_custom(task.python, task.args, where, search)
    found = _made(DECODERS[verb_of(task)].get(value_of(task)), task, labels, where)
    return Detector(found, task.score, task.iou, task.limit, labels) if isinstance(task, DetectTask) else found


def _made(kind: Any, task: Any, labels: tuple[str, ...], where: str) -> Any:
    """The decoder with what the task's section and labels say, and its own options."""
    given = {key: getattr(task, key) for key in type(task).model_fields if key not in ("options", "labels")}
    given |= {"labels": labels, "label_count": len(labels)}
    names = [field.name for field in fields(kind)]
    known = [name for name in names if name not in given]
    name = value_of(task)
    for option in task.options:
        if option not in known:
            raise ConfigError(
                f"decoder {name!r} has no option {option!r}{nearest(str(option), known)}",
                why=f"its options: {', '.join(known) or 'none'}",
                where=where,
            )
    settings = {key: value for key, value in given.items() if key in names} | task.options
    try:
        return TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"option {option!r} of decoder {name!r} cannot be {first['input']!r}", why=first["msg"], where=where
        ) from error
