"""Section of a model, from a pipeline file or inferred for an ONNX file: the input of calibrate, quantize and eval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from edgert.config import AccuracyConfig, CalibrateConfig, EmbedTask, InputConfig, ModelConfig, load_pipeline
from edgert.config.model_section import value_of, verb_of
from edgert.config.pipeline_file import input_words, parse_input, parse_task, task_words
from edgert.errors import ConfigError, ModelError, nearest
from edgert.installation import pipeline_path
from edgert.quantization.calibration.threshold import METHODS
from edgert.quantization.run import Log
from edgert.stages.kinds import ByteTrackStage, tracking_of

_METRICS = {
    "classify": "top1",
    "segment": "miou",
    "embed": "cosine",
    "text": "cer",
    "depth": "abs_rel",
    "image": "psnr",
}
"""The metric by task, where a budget names none; of others, and of several labels an image, it is ``map``."""


@dataclass(frozen=True, slots=True)
class ModelSection:
    """A model's section of a pipeline file.

    Attributes:
        name: name of the model in the pipeline file, or stem of the ONNX file.
        directory: folder in which ``python:`` finds the user's own code.
        tracking: settings by which the pipeline tracks the model's detections; None where it does not.
    """

    name: str
    config: ModelConfig
    where: str
    directory: Path
    tracking: ByteTrackStage | None = None

    def with_calibration(
        self, images: str | None, method: str | None, limit: int | None, early_stop: bool = True
    ) -> ModelSection:
        """Return the section with other images, method or limit of calibration; None keeps the section's own.

        Raises ConfigError: there is no such method.
        """
        _check_choice(method, (*METHODS, "auto"), "--method")
        written = self.config.calibrate.model_dump() if self.config.calibrate else {}
        given = {"images": images, "method": method, "limit": limit, "early_stop": None if early_stop else False}
        settings = {**written, **_given_only(given)}
        if "images" not in settings:
            return self
        return self._with(calibrate=CalibrateConfig.model_validate(settings))

    def with_kept_layers(self, layers: Sequence[str]) -> ModelSection:
        """Return the section with these layers, names or globs, in higher precision; empty keeps the section's own."""
        if not layers:
            return self
        return self._with(quantize=self.config.quantize.model_copy(update={"keep": tuple(layers)}))

    def with_budget(self, data: str | None, metric: str | None, max_drop: float | None) -> ModelSection:
        """Return the section with another accuracy budget; None keeps the section's own.

        Raises ConfigError: there is no such metric, or there are no labeled images.
        """
        if data is None and max_drop is None:
            return self
        if data is None and self.config.accuracy is None:
            raise ConfigError("--max-drop needs labeled images", why="no labeled images are named", fix="--data PATH")
        _check_choice(metric, get_args(AccuracyConfig.model_fields["metric"].annotation), "--metric")
        accuracy, task = self.config.accuracy, self.config.task
        usual = "map" if value_of(task) == "multilabel" else _METRICS.get(verb_of(task), "map")
        written = accuracy.model_dump() if accuracy else {"metric": usual, "max_drop": 1.0}
        given = {"dataset": data, "metric": metric, "max_drop": max_drop}
        return self._with(accuracy=AccuracyConfig.model_validate({**written, **_given_only(given)}))

    def _with(self, **changes: object) -> ModelSection:
        return replace(self, config=self.config.model_copy(update=changes))


def model_section(
    source: str | Path,
    *,
    model: str | None = None,
    task: str | None = None,
    input: str | InputConfig | None = None,
    overrides: Sequence[str] = (),
    needs_task: bool = True,
    images: str | None = None,
    log: Log | None = None,
) -> ModelSection:
    """Read the section of a model from a pipeline file, or infer that of an ONNX file.

    The task and input of an ONNX file that the caller does not give are inferred from its metadata, its family's code,
    and the images. An uncertain guess is refused. Without ``needs_task``, outputs of unknown meaning count as vectors.
    A few ``images`` show the right preprocessing where the file does not. ``log`` is called with what was inferred.
    Raises ConfigError: there is no such model, options exclude each other, or the task or input of an ONNX file cannot
    be inferred with certainty.
    """
    if Path(source).suffix.lower() == ".onnx":
        if model is not None or overrides:
            option = "--model" if model is not None else "--set"
            what = f"{option} works with pipelines only; {source} is an ONNX file"
            raise ConfigError(what, fix=f"leave {option} out")
        given = parse_input(input) if isinstance(input, str) else input
        return _infer_section(Path(source), task, given, needs_task, images, log)
    file = load_pipeline(pipeline_path(str(source)), overrides)
    names = list(file.config.models)
    if not names:
        raise ConfigError(f"{source} has no model", where=file.where("models"))
    if model is None and len(names) > 1:
        raise ConfigError(
            f"{source} has {len(names)} models, and none is named",
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
            f"--{option} works with ONNX files only; {source} has its own",
            where=file.where("models", name, option),
            fix=f"change the file, or --set models.{name}.{option}.KEY=VALUE",
        )
    config, where = file.config.models[name], file.where("models", name)
    return ModelSection(name, config, where, file.document.path.parent, tracking_of(file.config, name))


_FEW, _ENOUGH = 4, 16
"""Numbers of images on which preprocessing is tried when nothing else shows it; the second where the first fails."""


def _infer_section(
    path: Path, task: str | None, input: InputConfig | None, needs_task: bool, images: str | None, log: Log | None
) -> ModelSection:
    written = None if task is None else parse_task(task)
    if input is not None and (written is not None or not needs_task):
        config = ModelConfig(onnx=path.absolute(), task=written or EmbedTask(embed="none"), input=input)
        return ModelSection(path.stem, config, str(path), Path())
    from edgert.wiring.inferred import infer

    try:
        made = infer(path, task=written)
        for count in (_FEW, _ENOUGH):
            if input is None and images is not None and not made.sure:
                if log is not None:
                    log(f"the file does not state its preprocessing: trying it on {count} images")
                made = infer(path, [images], task=written, limit=count)
    except ModelError as error:
        option = "--input 'letterbox rgb mean=0 std=255'" if input is None else "--task 'detect yolox'"
        fix = f"give it: {option} or the like; edgert inspect {path} lists inputs and outputs"
        raise ConfigError(
            f"cannot tell the task and preprocessing of {path}", why=error.why or error.what, where=str(path), fix=fix
        ) from error
    if written is None and needs_task and not made.task_sure:
        raise ConfigError(
            f"cannot tell the task of {path}",
            why=f"the file does not state it, and its outputs fit several tasks: {'; '.join(made.task_notes)}",
            where=str(path),
            fix=f"--task '{task_words(made.setting.task)}' or the like; edgert inspect {path} lists its outputs",
        )
    setting = made.setting
    if input is None and not made.sure:
        likely = input_words(setting.input)
        raise ConfigError(
            f"cannot tell the preprocessing of {path}",
            why=f"the file does not state it, and a wrong scale spoils every number: {made.input_notes[0]}",
            where=str(path),
            fix=f"--input '{likely}' is likeliest; edgert check with labeled or more images shows whether it is right",
        )
    if log is not None and input is None:
        why = made.input_notes[0] if made.report else made.prior.source or made.input_notes[0]
        log(f"input: {input_words(setting.input)} ({why})")
    does = setting.task if made.task_sure else EmbedTask(embed="none")
    if log is not None and task is None and made.task_sure:
        log(f"task: {task_words(does)} ({made.task_notes[0]})")
    config = ModelConfig(onnx=path.absolute(), task=does, input=input or setting.input)
    return ModelSection(path.stem, config, str(path), Path())


def _given_only(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _check_choice(value: str | None, known: Sequence[str], option: str) -> None:
    if value is not None and value not in known:
        noun, hint = option.removeprefix("--"), nearest(value, known)
        raise ConfigError(f"there is no {noun} {value!r}{hint}", where=option, fix=f"one of {', '.join(known)}")
