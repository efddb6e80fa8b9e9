"""How good a model is, and what other versions of it lose: what ``edgert eval`` does."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.errors import CalibrationError, ConfigError
from edgert.evaluation import Dataset, Standing, labels_of, open_dataset, open_exam, side_by_side
from edgert.graph.load import load
from edgert.graph.model import Model
from edgert.quantization.evaluation_report import evaluation_report
from edgert.quantization.outcome import Bar, Tell
from edgert.quantization.section import ModelSection, model_section
from edgert.quantization.variants import Version, Wanted, versions
from edgert.report import save

_REFERENCE = "fp32"  # what the model is called where its own name is that of a version


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """How good a model and its other versions are.

    Attributes:
        section: the model.
        standing: results of every version, and how each compares.
        dataset: what they were evaluated on.
        versions: those that were made of the model, by name.
        others: those that were given as files, by name.
        unfinished: names of those that were not evaluated to the end, as it was stopped.
    """

    section: ModelSection
    standing: Standing
    dataset: Dataset
    versions: Mapping[str, Version]
    others: Mapping[str, Model]
    unfinished: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        unfinished = {"unfinished": list(self.unfinished)} if self.unfinished else {}
        notes = list(self.dataset.notes)
        return {"model": self.section.name, "notes": notes, **self.standing.to_json(), **unfinished}

    def save_report(self, path: Path, command: str = "") -> None:
        """Writes one HTML page about it; ``command`` is shown as what made it. Raises ArtifactError."""
        labeled = self.dataset.truth is not None
        config = self.section.config
        page = evaluation_report(self.standing, self.versions, self.others, config, labeled=labeled, command=command)
        save(page, path)


def evaluate(
    source: str | Path,
    *,
    model: str | None = None,
    data: str | None = None,
    metric: str | None = None,
    against: Sequence[Path] = (),
    max_drop: float | None = None,
    limit: int | None = None,
    precision: Sequence[str] = (),
    emulate: Sequence[str] = (),
    images: str | None = None,
    ranges: Path | None = None,
    task: str | None = None,
    input: str | None = None,
    overrides: Sequence[str] = (),
    tell: Tell | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> Evaluation | None:
    """Evaluates a model and other versions of it on the same images. Blocks until done.

    Args:
        source: an ONNX file, a pipeline file, or the name of a shipped pipeline.
        model: which model of the pipeline, where there are several.
        data: labeled images, or images alone; the pipeline's ``accuracy: dataset`` by default.
        metric: what versions are compared by; the pipeline's by default.
        against: ONNX files of other versions.
        max_drop: largest loss that is accepted, 0 to 1; the pipeline's by default.
        limit: at most so many images.
        precision: int8, fp16: versions to make of the model.
        emulate: dla, gpu: parts of a Jetson whose INT8 is emulated.
        images: what INT8 is calibrated on; the pipeline's ``calibrate: images`` by default.
        ranges: a range file instead of that.
        task, input: of an ONNX file, as they stand in YAML.
        overrides: ``KEY=VALUE`` of a pipeline.
        tell: called with each step.
        bar: moved while images are counted.
        stop: ends it when set; what was evaluated by then is returned.

    Returns:
        What was found; None if it was stopped before anything was.

    Raises:
        ConfigError: no such model, images, metric, precision or part.
        EdgertError: labels or a model cannot be used.
    """
    section = model_section(source, model=model, task=task, input=input, overrides=overrides)
    config, where, budget = section.config, section.where, section.config.accuracy
    stop = stop or threading.Event()
    labels = labels_of(config, where)
    reference = load(config.onnx)
    others = {_name(path, against): load(path) for path in against}
    dataset = open_dataset(_data(data, section), config.task, labels, limit=limit)
    exam = open_exam(reference, config, dataset, labels=labels, directory=section.directory, where=where)
    wanted = Wanted(precisions=tuple(precision), emulated=tuple(emulate), images=images or "", ranges=ranges)
    try:
        made = versions(config, wanted, dataset.image_dataset, where=where, tell=tell, bar=bar, stop=stop)
    except CalibrationError:
        if stop.is_set():
            return None
        raise
    runs = {name: version.run for name, version in made.items()}
    first = section.name if section.name not in runs else _REFERENCE
    candidates: dict[str, Any] = {first: reference, **others, **runs}
    found = side_by_side(
        candidates,
        exam,
        metric or (budget.metric if budget else None),
        max_drop=max_drop if max_drop is not None or budget is None else budget.max_drop,
        progress=bar,
        stop=stop,
    )
    if found is None:
        return None
    return Evaluation(section, found, dataset, made, others, tuple(candidates)[len(found.results) :])


def _data(data: str | None, section: ModelSection) -> str:
    if data is not None:
        return data
    if section.config.accuracy is not None:
        return str(section.config.accuracy.dataset)
    raise ConfigError(
        "no images to evaluate on",
        where=section.where,
        fix="--data PATH, or accuracy: {dataset: PATH, metric: map, max_drop: 0.01} in the pipeline",
    )


def _name(path: Path, paths: Sequence[Path]) -> str:
    """A file by its name, or where several have that name, by its path."""
    return path.name if sum(other.name == path.name for other in paths) == 1 else str(path)
