"""Accuracy of a model, and what other versions of it lose: the work of ``edgert eval``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.backend.ort import Function
from edgert.board.host import cpu_name
from edgert.dataset import LabeledDataset, open_dataset
from edgert.errors import CalibrationError, ConfigError
from edgert.evaluation import EvaluationResult, EvaluationSetup, evaluate_versions, open_evaluation
from edgert.evaluation.score import is_uninformative
from edgert.files import replace_text
from edgert.graph import Model, load
from edgert.quantization.describe import accuracy_rows, describe, engine_text, provenance, settings, sizes_bytes
from edgert.quantization.quantization_error import drowned, is_clear, output_noise
from edgert.quantization.run import Run
from edgert.quantization.section import ModelSection, model_section
from edgert.quantization.variants import Version, Wanted, versions
from edgert.report.quantization_page import render
from edgert.report.quantization_record import REFERENCE, Missing, Note, QuantizationReport, SpeedRow
from edgert.reporter import OnProgress, Reporter, reporter_of
from edgert.stages.decode.kinds import labels_of

# The report of an evaluation: several versions of one model, and one of them in detail.

_EMULATION = Note(
    "Emulated: this is the arithmetic that is publicly known of such a device, not a measurement of one. "
    "Evaluate the model on the device before relying on it."
)
_OF_FILES = (
    "Layers, activations and corrections are known only for models that edgert quantized itself: --precision int8."
)
_NO_SPEED = "Not measured: an emulation takes longer than anything real would."


def _in_detail(main: Version, labeled: bool, command: str) -> QuantizationReport:
    assert main.quantized is not None
    made = main.quantized
    report = describe(made.outcome(labeled), made.config, command=command, source=made.source)
    if not main.emulated:
        return report
    absent: dict[Missing, str] = {"speed": _NO_SPEED, "corrections": "An emulation does not show what was changed."}
    return replace(report, target=f"{report.target}, emulated", notes=(_EMULATION, *report.notes), absent=absent)


_REFERENCE = "fp32"  # what the model is called where its own name is that of a version


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Accuracy of a model and its other versions.

    Attributes:
        section: the model.
        result: results of every version, and how each compares.
        dataset: what they were evaluated on.
        versions: those made of the model, by name.
        others: those given as files, by name.
        unfinished: names of those whose evaluation was stopped before its end.
        warnings: what the metrics do not show, a sentence each.
    """

    section: ModelSection
    result: EvaluationResult
    dataset: LabeledDataset
    versions: Mapping[str, Version]
    others: Mapping[str, Model]
    unfinished: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        unfinished = {"unfinished": list(self.unfinished)} if self.unfinished else {}
        about = {"model": self.section.name, "notes": list(self.dataset.notes), "warnings": list(self.warnings)}
        return {**about, **self.result.to_json(), **unfinished}

    def save_report(self, path: Path, command: str = "") -> None:
        """Write one HTML page about it; ``command`` is shown as what made it.

        Raises:
            ArtifactError: the page cannot be written.
        """
        replace_text(path, render(self.report(command)))

    def report(self, command: str = "") -> QuantizationReport:
        """Return the report: the first INT8 version layer by layer, the accuracy of all.

        Args:
            command: shown as what made the report.

        Raises:
            EdgertError: the model's file cannot be read any more, or ONNX Runtime cannot run a version.
        """
        config, labeled = self.section.config, self.dataset.ground_truth is not None
        main = next((one for one in self.versions.values() if one.quantized is not None), None)
        labels = {name: name for name in self.others} | {name: one.precision for name, one in self.versions.items()}
        if main is not None:
            labels[main.name] = "INT8"
            report = _in_detail(main, labeled, command)
        else:
            report = QuantizationReport(
                provenance(load(config.onnx), None, "", command, ""),
                precision=next(iter(labels.values()), REFERENCE),
                settings=settings(config),
                absent=dict.fromkeys(("layers", "tensors", "corrections"), _OF_FILES),
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
        """Return times of the evaluation's own runs, without emulations: those take longer than anything real would."""
        first, *rest = self.result.results
        emulated = {name for name, one in self.versions.items() if one.emulated}
        real = [(labels[one.name], one) for one in rest if one.name not in emulated]
        rows = [(REFERENCE, first), *real] if real else []
        return tuple(SpeedRow(name, one.run_ms, one.images) for name, one in rows)


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of an evaluation.

    Attributes:
        metric: compares versions; the pipeline's by default.
        max_drop: largest loss that is accepted, 0 to 1; the pipeline's by default.
        limit: at most this many images.
        precision: int8, fp16: versions to make of the model.
        emulate: dla, gpu: parts of a Jetson whose INT8 is emulated.
        images: what INT8 is calibrated on; the pipeline's ``calibrate: images`` by default.
        ranges: a range file instead of that.
        task: of an ONNX file, as written in YAML: ``detect yolox labels=names.txt``.
        dask: address of a Dask scheduler, whose workers judge the images instead; versions are made here.
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
    """Evaluate a model and other versions of it on the same images.

    Blocks until done.

    Args:
        source: an ONNX file, a pipeline file, or the name of a shipped pipeline.
        data: labeled images, or images alone; the pipeline's ``accuracy: dataset`` by default.
        model: which model of the pipeline, where there are several.
        against: ONNX files of other versions.
        input: preprocessing of an ONNX file, as written in YAML: ``letterbox rgb std=255``.
        options: versions to make, metric, budget and everything else.
        overrides: ``KEY=VALUE`` of a pipeline.
        on_progress: called with each step and for each image; what it raises ends the work within an image's time.

    Returns:
        The results; None if it was stopped before there were any.

    Raises:
        ConfigError: no such model, images, metric, precision or part.
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
        return _evaluated(section, data, against, options, report)


def _evaluated(
    section: ModelSection, data: str | None, against: Sequence[Path], options: EvaluateOptions, report: Reporter
) -> Evaluation | None:
    """Make the versions of a model and evaluate all of them."""
    config, where, budget = section.config, section.where, section.config.accuracy
    run = Run(where, section.directory, report.note, report.count, report.stop)
    labels = labels_of(config, where)
    reference = load(config.onnx)
    names = [path.name for path in against]  # where several have that name, their paths
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
    wanted = Wanted(
        precisions=tuple(options.precision),
        emulated=tuple(options.emulate),
        images=options.images or "",
        ranges=options.ranges,
    )
    try:
        made = versions(config, wanted, dataset.images, run)
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
"""Backends whose models ONNX Runtime can run as they are."""


def _warnings(candidates: Mapping[str, Any], found: EvaluationResult, setup: EvaluationSetup) -> Iterator[str]:
    """Yield what agreement may hide: noise larger than the signal, and a reference whose results are all alike."""
    first, *others = found.results
    if not others:
        return
    reference, count, clear = Function(candidates[first.name]), min(_NOISE_IMAGES, len(setup)), True
    for one in others:
        version = candidates[one.name]
        other = Function(version) if isinstance(version, Model) else version
        noise_db = output_noise(reference, other, map(setup.feed.feeds, range(count)))
        yield from (f"{one.name}: {text}" for text in drowned(noise_db, noise_db))
        clear &= is_clear(noise_db, noise_db)
    if found.metric == "agreement" and not clear and (why := is_uninformative(first.notes)):
        yield f"agreement with {first.name} says little: {why}"
