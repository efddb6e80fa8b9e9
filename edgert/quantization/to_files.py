"""Making and writing ranges, INT8 models and calibration caches: ``edgert calibrate`` and ``edgert quantize``."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

from dla import Target as Dla
from edgert.config import EmbedTask, InputConfig, ModelConfig
from edgert.dataset import ImageDataset, feed_of, open_images
from edgert.errors import ConfigError, nearest
from edgert.files import replace_bytes, replace_text
from edgert.graph import Model, load, read, to_bytes
from edgert.quantization.calibrated import calibrate_section, prepared, with_ranges
from edgert.quantization.calibration.range_calibrator import calibrate as measured
from edgert.quantization.calibration.ranges import RangeTable, save_table
from edgert.quantization.describe import describe, summary
from edgert.quantization.from_qdq import qdq_section
from edgert.quantization.int8_model import BUDGET_S, QuantizationResult, quantize_section
from edgert.quantization.lowering.trt_form import cache_of, version_number
from edgert.quantization.precision import is_quantized
from edgert.quantization.run import ALONE, Bar, Log, Run
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import USUAL_DLA, Target
from edgert.quantization.section import ModelSection, model_section
from edgert.report.quantization_page import save

Images = str | Path | Iterable[Any]
"""A folder, glob or video; or images, (h, w, 3) uint8 BGR arrays or files. An iterator is not held in memory."""
_LIMIT = 256  # images where nothing else is said
_IN_MEMORY = "images in memory"


def calibrate(
    source: str | Path | ModelConfig,
    images: Images | None = None,
    *,
    model: str | None = None,
    input: str | InputConfig | None = None,
    output: str | Path | None = None,
    method: str | None = None,
    limit: int | None = None,
    workers: int = 1,
    dask: str = "",
    early_stop: bool = True,
    overrides: Sequence[str] = (),
    log: Log | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> RangeTable:
    """Measure the ranges of a model's tensors.

    Blocks until done.

    Args:
        source: an ONNX file, a pipeline file, the name of a shipped pipeline, or a model's section of a pipeline.
        images: see :data:`Images`; those of the pipeline's ``calibrate:`` by default.
        model: which model of the pipeline, where there are several.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it for sure.
        output: where the range file goes, beside which an interrupted measurement is saved; None: nowhere.
        method: mse, minmax, percentile, entropy or auto.
        limit: at most this many images, 256 by default.
        workers: processes; one already uses all cores.
        dask: address of a Dask scheduler, whose workers measure instead.
        early_stop: stops when more images no longer change the ranges.
        overrides: ``KEY=VALUE`` of a pipeline.
        log: called with what was inferred about an ONNX file.
        bar: moved while images are counted.
        stop: ends it when set, within an image's time.

    Raises:
        ConfigError: no such model, method or images; or nothing shows the preprocessing of an ONNX file.
        CalibrationError: too few images, values that cannot be used, or stopped.
        ArtifactError: the range file cannot be written.
    """
    section = _section(source, model, None, input, overrides, needs_task=False, images=images, log=log)
    file = None if output is None else Path(output)
    state = None if file is None else file.with_name(f".{file.name}.state")
    run = Run(section.where, section.directory, bar=bar, stop=stop)
    if images is None or isinstance(images, (str, Path, Sequence)):
        section, dataset = _on_images(section, images, method, limit, early_stop)
        table = calibrate_section(
            section.config, run=run, images=dataset, workers=workers, dask=dask, state=state
        ).table
    else:
        ready, some = prepared(load(section.config.onnx), section.config), islice(images, limit or _LIMIT)
        feed = (feed_of(open_images([image]), ready, section.config).feeds(0) for image in some)
        table = measured(
            ready,
            feed,
            method="mse" if method in (None, "auto") else method,
            workers=workers,
            dask=dask,
            early_stop=early_stop,
            state=state,
            progress=run.progress,
            stop=stop,
        )
    if file is not None:
        save_table(table, file)
    return table


def _section(
    source: str | Path | ModelConfig,
    model: str | None,
    task: str | None,
    input: str | InputConfig | None,
    overrides: Sequence[str],
    *,
    needs_task: bool,
    images: object = None,
    log: Log | None = None,
) -> ModelSection:
    if isinstance(source, ModelConfig):
        if model or task or input or overrides:
            raise ConfigError(
                "model, task, input and overrides are for files", why="a section has its own", fix="leave them out"
            )
        return ModelSection(source.onnx.stem, source, "", Path())
    text = "" if isinstance(input, InputConfig) and Path(source).suffix.lower() == ".onnx" else input
    shown = str(images) if isinstance(images, (str, Path)) else None
    found = model_section(
        source, model=model, task=task, input=None if isinstance(text, InputConfig) else text, overrides=overrides,
        needs_task=needs_task, images=shown, log=log,
    )  # fmt: skip
    if isinstance(input, InputConfig):
        found = replace(found, config=found.config.model_copy(update={"input": input}))
    return found


def _on_images(
    section: ModelSection,
    images: str | Path | Sequence[Any] | None,
    method: str | None,
    limit: int | None,
    early_stop: bool = True,
) -> tuple[ModelSection, ImageDataset | None]:
    """Return the section with the given calibration settings, and the images themselves where they are given."""
    if images is None or isinstance(images, (str, Path)):
        return section.calibrated_on(None if images is None else str(images), method, limit, early_stop), None
    return section.calibrated_on(_IN_MEMORY, method, limit, early_stop), open_images(images[: limit or _LIMIT])


TARGETS = ("ort", "gpu", "dla", "cache")
"""Targets of an INT8 model; ``cache`` is a calibration cache for TensorRT <= 10."""
USUAL_TRT = "10.3.0"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedModel:
    """The result of quantizing, and where it was written.

    Attributes:
        config: the model's section, as it was used.
        model: the INT8 model; for a calibration cache the float model that it belongs to.
        path: the file of the INT8 model, or the calibration cache; None where nothing was written.
        lines: what it cost, for people.
        problems: what was wrong with the scales stored in a model.
        outcome: how it was made; None of a model with its own scales.
    """

    config: ModelConfig
    model: Model
    path: Path | None
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()
    outcome: QuantizationResult | None = None


def quantize(
    source: str | Path | ModelConfig,
    images: str | Path | Sequence[Any] | None = None,
    *,
    model: str | None = None,
    output: str | Path | None = None,
    ranges: RangeTable | str | Path | None = None,
    input: str | InputConfig | None = None,
    task: str | None = None,
    method: str | None = None,
    limit: int | None = None,
    target: str = "ort",
    trt: str = USUAL_TRT,
    keep: Sequence[str] = (),
    data: str | None = None,
    metric: str | None = None,
    max_drop: float | None = None,
    budget_s: float = BUDGET_S,
    report: str | Path | None = None,
    command: str = "",
    overrides: Sequence[str] = (),
    log: Log | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> QuantizedModel:
    """Make a model INT8, and write it to ``output``.

    Blocks until done. A model with Q/DQ nodes has its own scales: for ``cache`` and ``dla`` these are taken, and
    nothing is measured.

    Args:
        source: an ONNX file, a pipeline file, the name of a shipped pipeline, or a model's section of a pipeline.
        images: what INT8 is calibrated on, a folder, glob or video, or images as :func:`calibrate` takes them; the
            pipeline's ``calibrate: images`` by default.
        model: which model of the pipeline, where there are several.
        output: the file, or the folder of one that is named after the model; None: nowhere.
        ranges: of :func:`calibrate`, or a file of them, instead of measuring.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it for sure.
        task: of an ONNX file, likewise.
        method: mse, minmax, percentile, entropy or auto.
        limit: at most this many images, 256 by default.
        target: one of :data:`TARGETS`.
        trt: TensorRT's version, for the header of a calibration cache.
        keep: layers to leave in higher precision, by name or glob.
        data: labeled images; the pipeline's ``accuracy: dataset`` by default.
        metric: what the budget is of; the pipeline's, or map, by default.
        max_drop: largest loss that is accepted, 0 to 1; the pipeline's by default.
        budget_s: seconds for finding layers to leave in higher precision.
        report: where one HTML page about it goes; None: nowhere.
        command: what the page shows as having made it.
        overrides: ``KEY=VALUE`` of a pipeline.
        log: called with each step.
        bar: moved while images are counted.
        stop: ends it when set, within an image's time.

    Raises:
        ConfigError: no such model, target, method, metric or images; or settings for a model that has its own scales.
        BuildError: the budget cannot be met; names the layers that cost most.
        CalibrationError: too few images, or stopped.
        ArtifactError: it cannot be written.
    """
    if target not in TARGETS:
        known = ", ".join(TARGETS)
        raise ConfigError(
            f"there is no target {target!r}{nearest(target, TARGETS)}", where="--target", fix=f"one of {known}"
        )
    is_file = not isinstance(source, ModelConfig) and Path(source).suffix.lower() == ".onnx"
    if input is None and is_file and target in ("cache", "dla") and is_quantized(load(cast(Path, source))):
        input = ""  # nothing is measured
    section = _section(source, model, task, input, overrides, needs_task=data is not None, images=images, log=log)
    path = None if output is None else Path(output)
    if path is not None and path.is_dir():
        path /= section.config.onnx.with_suffix(".cache" if target == "cache" else ".int8.onnx").name
    dla = USUAL_DLA
    if target == "cache":  # for the release that will read it, unless that has no DLA: the cache is for a GPU then
        version_number(trt)
        dla = Dla(tensorrt=trt) if Dla(tensorrt=trt).release.answer != "no" else USUAL_DLA
    if target in ("cache", "dla") and is_quantized(load(section.config.onnx)):
        settings = {"--ranges": ranges is not None, "--images": images is not None, "--method": method,
                    "--limit": limit, "--keep": keep, "--data": data, "--max-drop": max_drop,
                    "--report": report}  # fmt: skip
        if given := [option for option, value in settings.items() if value]:
            named = " and ".join(given)
            raise ConfigError(
                f"{named}: {section.config.onnx.name} is quantized already",
                why="its scales are those of its Q/DQ nodes: nothing is measured, chosen or corrected",
                fix=f"leave {named} out, or give the float32 model",
            )
        return _of_qdq(section.config, target, trt, dla, path)
    section, dataset = _on_images(section, images, method, limit)
    section = section.keeping(keep).within(data, metric, max_drop)
    run = Run(section.where, section.directory, log or ALONE.log, bar, stop, section.tracking)
    engine = cast(Target, "dla" if target == "cache" else target)
    if ranges is not None:
        calibrated = with_ranges(section.config, ranges, images=dataset, where=section.where)
    else:  # a cache lists every tensor
        wanted = None if target == "cache" else engine
        calibrated = calibrate_section(section.config, target=wanted, images=dataset, run=run)
    outcome = quantize_section(
        section.config,
        calibrated,
        target=engine,
        dla=dla,
        run=run,
        budget_s=budget_s,
        judged=task is not None or not is_file or not isinstance(section.config.task, EmbedTask),
        smooth=target != "cache",
    )
    if path is not None and target == "cache":
        graph, scheme = read(outcome.prepared), outcome.quantized.scheme
        replace_text(path, cache_of(graph, scheme, outcome.table.amax, trt))
        if kept := fp16_exceptions(graph, scheme):  # layers that trtexec is to leave in FP16, as its option takes them
            replace_text(path.with_suffix(".layer_precisions"), layer_precisions(kept))
    elif path is not None:
        replace_bytes(path, to_bytes(outcome.model))
    if report is not None:
        source_text = "" if dataset is None else _IN_MEMORY
        save(describe(outcome, section.config, command=command, source=source_text), Path(report))
    made = outcome.prepared if target == "cache" else outcome.model
    return QuantizedModel(section.config, made, path, tuple(summary(outcome)), outcome=outcome)


def _of_qdq(config: ModelConfig, target: str, tensorrt: str, dla: Dla, path: Path | None) -> QuantizedModel:
    """Write the DLA's form of a model that came with Q/DQ nodes.

    That is a calibration cache and the float model that it belongs to, or the Q/DQ form with a scale on every tensor.
    """
    found = qdq_section(config)
    model = found.model if target == "cache" else found.typed(dla)
    line, file = f"{len(found.scales)} scales of its Q/DQ nodes", path
    if path is not None and target == "cache":
        file = path.with_name(f"{path.stem}.float.onnx")
        replace_text(path, found.cache(tensorrt))
        if found.float_nodes:
            replace_text(path.with_suffix(".layer_precisions"), found.layer_precisions())
        line = f"{line}; the cache belongs to {file}"
    if file is not None:
        replace_bytes(file, to_bytes(model))
    return QuantizedModel(config, model, path, (line,), tuple(found.problems))
