"""What calibrate, quantize and evaluate work on: a model of a pipeline file, or an ONNX file and how to use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from edgert.config import AccuracyConfig, CalibrateConfig, EmbedTask, ModelConfig, load_pipeline
from edgert.config.pipeline_file import parse_input, parse_task
from edgert.errors import ConfigError, nearest
from edgert.installation import pipeline_path
from edgert.quantization.calibration.threshold import METHODS

_METRIC = "map"  # where a budget names none


@dataclass(frozen=True, slots=True)
class ModelSection:
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

    def calibrated_on(
        self, images: str | None, method: str | None, limit: int | None, early_stop: bool = True
    ) -> ModelSection:
        """The same with other images, method or limit of calibration; None leaves what is written.

        Raises:
            ConfigError: there is no such method.
        """
        _check(method, (*METHODS, "auto"), "--method")
        written = self.config.calibrate.model_dump() if self.config.calibrate else {}
        given = {"images": images, "method": method, "limit": limit, "early_stop": None if early_stop else False}
        settings = {**written, **_known(given)}
        if "images" not in settings:
            return self
        return self._with(calibrate=CalibrateConfig.model_validate(settings))

    def keeping(self, layers: Sequence[str]) -> ModelSection:
        """The same with these layers, names or globs, in higher precision; none leaves what is written."""
        if not layers:
            return self
        return self._with(quantize=self.config.quantize.model_copy(update={"keep": tuple(layers)}))

    def within(self, data: str | None, metric: str | None, max_drop: float | None) -> ModelSection:
        """The same with another accuracy budget; None leaves what is written.

        Raises:
            ConfigError: there is no such metric, or there are no labeled images.
        """
        if data is None and max_drop is None:
            return self
        if data is None and self.config.accuracy is None:
            raise ConfigError("--max-drop of what?", why="no labeled images are named", fix="--data PATH")
        _check(metric, get_args(AccuracyConfig.model_fields["metric"].annotation), "--metric")
        accuracy = self.config.accuracy
        written = accuracy.model_dump() if accuracy else {"metric": _METRIC, "max_drop": 1.0}
        given = {"dataset": data, "metric": metric, "max_drop": max_drop}
        return self._with(accuracy=AccuracyConfig.model_validate({**written, **_known(given)}))

    def _with(self, **changes: object) -> ModelSection:
        return replace(self, config=self.config.model_copy(update=changes))


def model_section(
    source: str | Path,
    *,
    model: str | None = None,
    task: str | None = None,
    input: str | None = None,
    overrides: Sequence[str] = (),
    needs_task: bool = True,
) -> ModelSection:
    """Reads what was asked for.

    Args:
        source: an ONNX file, a pipeline file, or the name of a shipped pipeline.
        model: which model of the pipeline, where there are several.
        task, input: of an ONNX file, as they stand in YAML.
        overrides: ``KEY=VALUE`` of a pipeline.
        needs_task: whether an ONNX file without a task is refused; otherwise its outputs are taken as vectors.

    Raises:
        ConfigError: no such model, or options that do not go together.
    """
    if Path(source).suffix.lower() == ".onnx":
        if model is not None or overrides:
            option = "--model" if model is not None else "--set"
            raise ConfigError(f"{option} is for pipelines, and {source} is an ONNX file", fix=f"leave {option} out")
        if task is None and needs_task:
            raise ConfigError(
                f"what does {source} do?",
                why="an ONNX file has nothing about how its outputs are read",
                fix=f"--task 'detect yolox' or the like; edgert inspect {source} lists its outputs",
            )
        config = ModelConfig(
            onnx=Path(source).absolute(),
            task=parse_task(task) if task is not None else EmbedTask(embed="none"),
            input=parse_input(input or ""),
        )
        return ModelSection(Path(source).stem, config, str(Path(source)), Path())
    file = load_pipeline(pipeline_path(str(source)), overrides)
    names = list(file.config.models)
    if not names:
        raise ConfigError(f"{source} has no model", where=file.where("models"))
    if model is None and len(names) > 1:
        raise ConfigError(
            f"which model? {source} has {len(names)}",
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
            f"--{option} is for ONNX files; {source} has its own",
            where=file.where("models", name, option),
            fix=f"change the file, or --set models.{name}.{option}.KEY=VALUE",
        )
    return ModelSection(name, file.config.models[name], file.where("models", name), file.document.path.parent)


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _check(value: str | None, known: Sequence[str], option: str) -> None:
    if value is not None and value not in known:
        noun, hint = option.removeprefix("--"), nearest(value, known)
        raise ConfigError(f"no {noun} {value!r} here{hint}", where=option, fix=f"one of {', '.join(known)}")
