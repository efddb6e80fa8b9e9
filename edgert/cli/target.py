"""What a verb works on: a model of a pipeline file, or an ONNX file and how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.cli.option import pipeline_path
from edgert.errors import ConfigError, nearest

if TYPE_CHECKING:
    from edgert.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Target:
    """A model and its section.

    Attributes:
        name: in the pipeline file, or of the ONNX file.
        config: its section.
        where: its place, for errors.
        directory: where ``python:`` looks for the user's own code.
    """

    name: str
    config: ModelConfig
    where: str
    directory: Path


def target_of(
    target: str,
    *,
    model: str | None = None,
    task: str | None = None,
    input: str | None = None,
    overrides: Sequence[str] = (),
    needs_task: bool = True,
) -> Target:
    """Reads what was asked for.

    Args:
        needs_task: whether an ONNX file without a task is refused; otherwise its outputs are taken as vectors.

    Raises:
        ConfigError: no such model, or options that do not go together.
    """
    if Path(target).suffix.lower() == ".onnx":
        return _of_file(Path(target), model, task, input, overrides, needs_task)
    return _of_pipeline(target, model, task, input, overrides)


def _of_file(
    path: Path, model: str | None, task: str | None, input: str | None, overrides: Sequence[str], needs_task: bool
) -> Target:
    from edgert.config import EmbedTask, ModelConfig
    from edgert.config.short import parse_input, parse_task

    if model is not None or overrides:
        option = "--model" if model is not None else "--set"
        raise ConfigError(f"{option} is for pipelines, and {path} is an ONNX file", fix=f"leave {option} out")
    if task is None and needs_task:
        raise ConfigError(
            f"what does {path} do?",
            why="an ONNX file does not say how its outputs are read",
            fix=f"--task 'detect yolox' or the like; edgert inspect {path} says what its outputs look like",
        )
    config = ModelConfig(
        onnx=path.absolute(),
        task=parse_task(task) if task is not None else EmbedTask(embed="none"),
        input=parse_input(input or ""),
    )
    return Target(path.stem, config, str(path), Path())


def _of_pipeline(
    target: str, model: str | None, task: str | None, input: str | None, overrides: Sequence[str]
) -> Target:
    from edgert.config import load_pipeline

    file = load_pipeline(pipeline_path(target), overrides)
    names = list(file.config.models)
    if not names:
        raise ConfigError(f"{target} has no model", where=file.where("models"))
    if model is None and len(names) > 1:
        raise ConfigError(
            f"which model? {target} has {len(names)}",
            where=file.where("models"),
            fix=f"--model {names[0]} (or {', '.join(names[1:])})",
        )
    name = model or names[0]
    if name not in names:
        raise ConfigError(
            f"no model {name!r}{nearest(name, names)}", where=file.where("models"), fix=f"models: {', '.join(names)}"
        )
    if task is not None or input is not None:
        option = "task" if task is not None else "input"
        raise ConfigError(
            f"--{option} is for ONNX files; {target} has its own",
            where=file.where("models", name, option),
            fix=f"change the file, or --set models.{name}.{option}.KEY=VALUE",
        )
    return Target(name, file.config.models[name], file.where("models", name), file.document.path.parent)
