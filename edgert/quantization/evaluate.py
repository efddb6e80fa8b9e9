"""Evaluation of a model and other versions of it: ``edgert eval``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.backend.ort import Function
from edgert.board.host import cpu_name
from edgert.dataset import LabeledDataset, open_dataset
from edgert.errors import CalibrationError, ConfigError
from edgert.evaluation import EvaluationResult, EvaluationSetup, evaluate_versions, open_evaluation, score
from edgert.files import replace_text
from edgert.graph import Model, load
from edgert.quantization import quantization_error, variants
from edgert.quantization.describe import accuracy_rows, describe, engine_text, provenance, settings, sizes_bytes
from edgert.quantization.run import Run
from edgert.quantization.section import ModelSection, model_section
from edgert.report.quantization_page import render
from edgert.report.quantization_record import REFERENCE, Note, QuantizationReport, SpeedRow
from edgert.reporter import OnProgress, Reporter, reporter_of
from edgert.stages.decode.kinds import labels_of

_EMULATION = Note(
    "Emulated: this is the publicly known arithmetic of such a device, not a measurement of one. "
    "Evaluate the model on the device before relying on it."
)
_OF_FILES = "Layers and activations are known only for models that edgert quantized itself: --precision int8."
_NO_SPEED = "Not measured: an emulation takes longer than the device."


def _detailed_report(main: variants.Version, labeled: bool, command: str) -> QuantizationReport:
    assert main.quantized is not None
    made = main.quantized
    report = describe(made.outcome(labeled), made.config, command=command, source=made.source)
    if not main.emulated:
        return report
    target, notes = f"{report.target}, emulated", (_EMULATION, *report.notes)
    return replace(report, target=target, notes=notes, absent={"speed": _NO_SPEED})


_REFERENCE = "fp32"  # name of the model where a version has its own name


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Accuracy of a model and other versions of it.

    Attributes:
        versions: versions that were made of the model, by name.
        others: versions that were given as files, by name.
        unfinished: names of versions whose evaluation was stopped.
        warnings: problems that the metrics do not show, a sentence each.
    """

    section: ModelSection
    result: EvaluationResult
    dataset: LabeledDataset
    versions: Mapping[str, variants.Version]
    others: Mapping[str, Model]
    unfinished: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data."""
        unfinished = {"unfinished": list(self.unfinished)} if self.unfinished else {}
        about = {"model": self.section.name, "notes": list(self.dataset.notes), "warnings": list(self.warnings)}
        return {**about, **self.result.to_json(), **unfinished}

    def save_report(self, path: Path, command: str = "") -> None:
        """Write one HTML page about the evaluation; ``command`` is the command line shown in it.

        Raises ArtifactError: the page cannot be written.
        """
        replace_text(path, render(self.report(command)))

    def report(self, command: str = "") -> QuantizationReport:
        """Return the report, with the layers of the first INT8 version and the accuracy of all.

        Raises EdgertError: the model's file cannot be read any more, or ONNX Runtime cannot run a version.
        """
        config, labeled = self.section.config, self.dataset.ground_truth is not None
        main = next((version for version in self.versions.values() if version.quantized is not None), None)
        labels = {name: name for name in self.others} | {name: one.precision for name, one in self.versions.items()}
        if main is not None:
            labels[main.name] = "INT8"
            report = _detailed_report(main, labeled, command)
        else:
            report = QuantizationReport(
                provenance(load(config.onnx), None, "", command, ""),
                precision=next(iter(labels.values()), REFERENCE),
                settings=settings(config),
                absent=dict.fromkeys(("layers", "tensors"), _OF_FILES),
            )
        models = {labels[name]: one.run for name, one in self.versions.items() if isinstance(one.run, Model)}
        models |= self.others
        return replace(
            report,
            accuracy=accuracy_rows(self.result, labeled, labels),
            speed=self._speed(labels),
            timed_on=f"{engine_text(config)}, {cpu_name()}, 1 thread a run, {self.result.results[0].threads} at a time",
            sizes_bytes=sizes_bytes({REFERENCE: load(config.onnx), **models} if models else {}),
            notes=(*(Note(f"{text[:1].upper()}{text[1:]}.", level="warning") for text in self.warnings), *report.notes),
        )

    def _speed(self, labels: Mapping[str, str]) -> tuple[SpeedRow, ...]:
        first, *rest = self.result.results
        emulated = {name for name, one in self.versions.items() if one.emulated}
        real = [(labels[one.name], one) for one in rest if one.name not in emulated]
        rows = [(REFERENCE, first), *real] if real else []
        return tuple(SpeedRow(name, one.run_ms, one.images) for name, one in rows)


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of an evaluation.

    Attributes:
        metric: metric that compares versions; by default the pipeline's.
        max_drop: largest accepted loss, 0 to 1; by default the pipeline's.
        limit: largest number of images.
        precision: versions to make of the model: int8, fp16.
        emulate: parts of a Jetson whose INT8 is emulated: dla, gpu.
        images: images to calibrate INT8 on; by default the pipeline's ``calibrate: images``.
        ranges: range file to use instead of images.
        task: task of an ONNX file, as written in YAML: ``detect yolox labels=names.txt``.
        dask: address of a Dask scheduler, whose workers evaluate; versions are still made here.
    """

    metric: str | None = None
    max_drop: float | None = None
    limit: int | None = None
    precision: Sequence[str] = ()
    emulate: Sequence[str] = ()
    images: str | None = None
    ranges: Path | None = None
    task: str | None = None
    dask: str = ""


def evaluate(
    source: str | Path,
    *,
    data: str | None = None,
    model: str | None = None,
    against: Sequence[Path] = (),
    input: str | None = None,
    options: EvaluateOptions = EvaluateOptions(),
    overrides: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> Evaluation | None:
    """Evaluate a model and other versions of it on the same images. Blocks until done.

    Args:
        source: path of an ONNX or pipeline file, or name of a shipped pipeline.
        data: images with or without labels; by default the pipeline's ``accuracy: dataset``.
        model: name of the model, where the pipeline has several.
        against: ONNX files of other versions.
        input: preprocessing of an ONNX file, as written in YAML: ``letterbox rgb std=255``.
        options: versions to make, metric, budget and all other options.
        overrides: settings of a pipeline, as ``KEY=VALUE``.
        on_progress: function to call with each step and for each image; an exception in it ends the work within an
            image's time.

    Returns:
        Results; None if the evaluation was stopped before there were any.

    Raises:
        ConfigError: there is no such model, images, metric, precision or part.
        EdgertError: labels or a model cannot be used.
    """
    report = reporter_of(on_progress)
    with report.ends():
        section = model_section(
            source,
            model=model,
            task=options.task,
            input=input,
            overrides=overrides,
            images=data or options.images,
            log=report.note,
        )
        return _evaluate_section(section, data, against, options, report)


def _evaluate_section(
    section: ModelSection, data: str | None, against: Sequence[Path], options: EvaluateOptions, report: Reporter
) -> Evaluation | None:
    config, where, budget = section.config, section.where, section.config.accuracy
    run = Run(where, section.directory, report.note, report.count, report.stop)
    labels = labels_of(config, where)
    reference = load(config.onnx)
    names = [path.name for path in against]  # equal names are replaced by paths
    others = {path.name if names.count(path.name) == 1 else str(path): load(path) for path in against}
    path = data or (budget.dataset if budget else None)
    if path is None:
        raise ConfigError(
            "no images to evaluate on",
            where=where,
            fix="--data PATH, or accuracy: {dataset: PATH, metric: map, max_drop: 0.01} in the pipeline",
        )
    dataset = open_dataset(path, config.task, labels, limit=options.limit)
    setup = open_evaluation(
        reference, config, dataset, labels=labels, directory=section.directory, where=where, tracking=section.tracking
    )
    try:
        made = variants.make_versions(
            config,
            dataset.images,
            run,
            precisions=options.precision,
            emulated=options.emulate,
            calibrate=options.images or "",
            ranges=options.ranges,
        )
    except CalibrationError:
        if report.stop.is_set():
            return None
        raise
    runs = {name: version.run for name, version in made.items()}
    first = section.name if section.name not in runs else _REFERENCE
    candidates: dict[str, Any] = {first: reference, **others, **runs}
    found = evaluate_versions(
        candidates,
        setup,
        options.metric or (budget.metric if budget else None),
        max_drop=options.max_drop if options.max_drop is not None or budget is None else budget.max_drop,
        dask=options.dask,
        progress=report.count,
        stop=report.stop,
    )
    if found is None:
        return None
    unfinished = tuple(candidates)[len(found.results) :]
    warnings = tuple(_warnings(candidates, found, setup)) if config.backend in _ON_ORT else ()
    return Evaluation(section, found, dataset, made, others, unfinished, warnings)


_NOISE_IMAGES = 4
_ON_ORT = ("auto", "ort")
"""Backends whose models ONNX Runtime can run unchanged."""


def _warnings(candidates: Mapping[str, Any], found: EvaluationResult, setup: EvaluationSetup) -> Iterator[str]:
    """Yield warnings of noise larger than the signal, and of agreement with a reference whose results are all alike."""
    first, *others = found.results
    if not others:
        return
    reference, count, clear = Function(candidates[first.name]), min(_NOISE_IMAGES, len(setup)), True
    for one in others:
        version = candidates[one.name]
        other = Function(version) if isinstance(version, Model) else version
        noise_db = quantization_error.output_noise(reference, other, map(setup.feed.feeds, range(count)))
        yield from (f"{one.name}: {text}" for text in quantization_error.noisy_outputs(noise_db, noise_db))
        clear &= quantization_error.is_clear(noise_db, noise_db)
    if found.metric == "agreement" and not clear and (why := score.is_uninformative(first.notes)):
        yield f"agreement with {first.name} says little: {why}"
