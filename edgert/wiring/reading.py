"""Which decoders can read a model's outputs at all."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from edgert.backend import Engine
from edgert.config import PythonTask, TaskConfig
from edgert.config.model import value_of, verb_of
from edgert.errors import ConfigError, EdgertError, ModelError
from edgert.ready import one_picture
from edgert.stages.decode.guess import Guess, guess
from edgert.stages.decode.select import CheckedDecoder, decoder_for
from edgert.stages.decode.shape import Shapes, Size
from edgert.wiring.candidate import variants


def guesses(engine: Engine, label_count: int | None = None) -> list[Guess]:
    """What the outputs look like, from shapes and names, the likeliest first."""
    (picture,) = engine.inputs
    names = [tensor.name for tensor in engine.outputs]
    return guess(one_picture(engine), names, picture.shape[1:], label_count)


def readings(
    written: TaskConfig | None, engine: Engine, labels: tuple[str, ...], network: Size, verb: str | None = None
) -> list[TaskConfig]:
    """Every way to read the outputs: the written one first, then what they look like, each with its variants.

    Args:
        written: of the pipeline file; None for a model nobody has described yet.
        verb: only decoders of this task; by default the written one's, or the likeliest.

    Raises:
        ModelError: nothing can read them; says what was tried.
    """
    if isinstance(written, PythonTask):
        return [written]
    looks = guesses(engine, len(labels) or None)
    verb = verb or (verb_of(written) if written else looks[0].task if looks else None)
    tasks: list[TaskConfig] = [written] if written else []
    tasks += [task_of(found) for found in looks if found.task == verb and not _is_same(found, written)]
    shapes = tuple(one_picture(engine))
    fitting = [task for task in tasks if _why_not(task, shapes, network) is None]
    if not fitting:
        raise _nothing_fits(tasks, looks, shapes, network)
    return _distinct([variant for task in fitting for variant in variants(task)])


def decoder_of(task: TaskConfig, labels: tuple[str, ...], engine: Engine, network: Size) -> CheckedDecoder:
    """The decoder of a task, with the labels if there are enough of them for the way it reads the outputs."""
    decoder = decoder_for(task, labels)
    try:
        decoder.check(tuple(one_picture(engine)), network)
    except ConfigError:
        return decoder_for(task, ())
    return decoder


def task_of(found: Guess) -> TaskConfig:
    """The section ``task:`` that a guess means."""
    task: TaskConfig = TypeAdapter(TaskConfig).validate_python({found.task: found.decoder})
    return task


def _distinct(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """Those that make different decoders, the first of equals."""
    kept: list[tuple[TaskConfig, object]] = []
    for task in tasks:
        decoder = decoder_for(task, ())
        if all(decoder != other for _, other in kept):
            kept.append((task, decoder))
    return [task for task, _ in kept]


def _is_same(found: Guess, written: TaskConfig | None) -> bool:
    return written is not None and (found.task, found.decoder) == (verb_of(written), value_of(written))


def _why_not(task: TaskConfig, shapes: Shapes, network: Size) -> str | None:
    try:
        decoder_for(task, ()).check(shapes, network)
    except EdgertError as error:
        return error.why or error.what
    return None


def _nothing_fits(tasks: Sequence[TaskConfig], looks: Sequence[Guess], shapes: Shapes, network: Size) -> ModelError:
    got = ", ".join(str(list(shape)) for shape in shapes)
    tried = [f"{verb_of(task)}: {value_of(task)} ({_why_not(task, shapes, network)})" for task in tasks]
    others = ", ".join(f"'{found}' ({found.reason})" for found in looks)
    return ModelError(
        f"no decoder can read outputs {got} of a {network[0]}x{network[1]} input",
        why=f"tried {'; '.join(tried)}" if tried else "they look like nothing that edgert knows",
        fix=f"they look like {others}" if others else "task: {python: module:function}, with a decoder of your own",
    )
