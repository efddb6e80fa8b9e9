"""Ranges, INT8 models and calibration caches as files: ``edgert calibrate`` and ``edgert quantize``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from dla import Target as Dla
from edgert.config import EmbedTask, InputConfig, ModelConfig
from edgert.dataset import ImageDataset, feed_of, open_images
from edgert.errors import ConfigError, nearest
from edgert.files import replace_bytes, replace_text
from edgert.graph import Model, load, read, to_bytes
from edgert.quantization import from_qdq, int8_model
from edgert.quantization.calibrated import calibrate_section, prepare_section_model, with_ranges
from edgert.quantization.calibration.range_calibrator import calibrate as measured
from edgert.quantization.calibration.ranges import RangeTable, save_table
from edgert.quantization.describe import describe, summary
from edgert.quantization.lowering.trt_form import cache_text, version_number
from edgert.quantization.run import Log, Run, is_quantized
from edgert.quantization.scheme import trt_scheme, units
from edgert.quantization.section import ModelSection, model_section
from edgert.report.quantization_page import render
from edgert.reporter import OnProgress, Reporter, reporter_of

Images = str | Path | Iterable[Any]
"""Folder, glob or video; or images, as (h, w, 3) uint8 BGR arrays or files. An iterator is not held in memory."""
_LIMIT = 256  # images by default
_IN_MEMORY = "images in memory"
TARGETS = ("ort", "gpu", "dla", "cache")
"""Targets of an INT8 model; ``cache`` is a calibration cache for TensorRT <= 10."""
USUAL_TRT = "10.3.0"


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Options for measuring ranges.

    Attributes:
        method: mse, minmax, percentile, entropy or auto; by default the pipeline's, or mse.
        limit: largest number of images, 256 by default.
        workers: number of processes; one already uses all cores.
        dask: address of a Dask scheduler, whose workers measure instead.
        early_stop: whether to stop when more images no longer change the ranges.
    """

    method: str | None = None
    limit: int | None = None
    workers: int = 1
    dask: str = ""
    early_stop: bool = True


def calibrate(
    source: str | Path | ModelConfig,
    images: Images | None = None,
    *,
    model: str | None = None,
    input: str | InputConfig | None = None,
    output: str | Path | None = None,
    options: CalibrateOptions = CalibrateOptions(),
    overrides: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> RangeTable:
    """Measure the ranges of a model's tensors. Blocks until done.

    Args:
        source: path of an ONNX or pipeline file, name of a shipped pipeline, or a model's section of a pipeline.
        images: images to measure on, see :data:`Images`; by default those of the pipeline's ``calibrate:``.
        model: name of the model, where the pipeline has several.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it with certainty.
        output: path of the range file, beside which an interrupted measurement is saved; None writes nothing.
        options: options for measuring.
        overrides: settings of a pipeline, as ``KEY=VALUE``.
        on_progress: function to call for each image, and with what was inferred about an ONNX file. An exception in it
            ends the work within an image's time; the next call with the same ``output`` resumes.

    Raises:
        ConfigError: there is no such model, method or images, or the preprocessing of an ONNX file is unknown.
        CalibrationError: there are too few images, values cannot be used, or the work was stopped.
        ArtifactError: the range file cannot be written.
    """
    report, file = reporter_of(on_progress), None if output is None else Path(output)
    with report.ends():
        section = _section(source, model, None, input, overrides, needs_task=False, images=images, log=report.note)
        state = None if file is None else file.with_name(f".{file.name}.state")
        run = Run(section.where, section.directory, bar=report.count, stop=report.stop)
        if images is None or isinstance(images, (str, Path, Sequence)):
            section, dataset = _with_images(section, images, options.method, options.limit, options.early_stop)
            table = calibrate_section(
                section.config, run=run, images=dataset, workers=options.workers, dask=options.dask, state=state
            ).table
        else:
            table = _calibrate_stream(section.config, images, options, run, state)
        if file is not None:
            save_table(table, file)
    return table


def _calibrate_stream(
    config: ModelConfig, images: Iterable[Any], options: CalibrateOptions, run: Run, state: Path | None
) -> RangeTable:
    ready, some = prepare_section_model(load(config.onnx), config), islice(images, options.limit or _LIMIT)
    feed = (feed_of(open_images([image]), ready, config).feeds(0) for image in some)
    return measured(
        ready,
        feed,
        method="mse" if options.method in (None, "auto") else options.method,
        workers=options.workers,
        dask=options.dask,
        early_stop=options.early_stop,
        state=state,
        bar=run.bar,
        stop=run.stop,
    )


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
    return model_section(
        source,
        model=model,
        task=task,
        input=input,
        overrides=overrides,
        needs_task=needs_task,
        images=str(images) if isinstance(images, (str, Path)) else None,
        log=log,
    )


def _with_images(
    section: ModelSection,
    images: str | Path | Sequence[Any] | None,
    method: str | None,
    limit: int | None,
    early_stop: bool = True,
) -> tuple[ModelSection, ImageDataset | None]:
    """Return the section with the given calibration settings, and the images that were given in memory, if any."""
    if images is None or isinstance(images, (str, Path)):
        return section.with_calibration(None if images is None else str(images), method, limit, early_stop), None
    return section.with_calibration(_IN_MEMORY, method, limit, early_stop), open_images(images[: limit or _LIMIT])


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedModel:
    """A quantized model, and where it was written.

    Attributes:
        config: section of the model, as it was used.
        model: INT8 model; for a calibration cache the float model to which it belongs.
        path: file of the INT8 model or of the calibration cache; None where nothing was written.
        lines: main facts as text.
        problems: what was wrong with the scales stored in a model.
        outcome: details of quantization; None for a model that came with its scales.
        images: source of the images for the report, where no file or folder names it.
    """

    config: ModelConfig
    model: Model
    path: Path | None
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()
    outcome: int8_model.QuantizationResult | None = None
    images: str = ""

    def save_report(self, path: str | Path, command: str = "") -> None:
        """Write one HTML page about the model.

        Raises ConfigError: the model came with its scales, so nothing was measured. Raises ArtifactError: the page
        cannot be written.
        """
        if self.outcome is None:
            raise _own_scales_error(self.config, "--report")
        replace_text(Path(path), render(describe(self.outcome, self.config, command=command, source=self.images)))


def _own_scales_error(config: ModelConfig, named: str) -> ConfigError:
    return ConfigError(
        f"{named}: {config.onnx.name} is quantized already",
        why="its Q/DQ nodes have the scales: nothing is measured, chosen or corrected",
        fix=f"leave {named} out, or give the float32 model",
    )


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Options for making an INT8 model.

    Attributes:
        ranges: result of :func:`edgert.calibrate`, or its file; None measures ranges.
        task: task of an ONNX file, as written in YAML; inferred where the file or its family shows it with certainty.
        method: mse, minmax, percentile, entropy or auto.
        limit: largest number of images, 256 by default.
        target: ``ort``, ``gpu`` or ``dla``; or ``cache``, a calibration cache for TensorRT <= 10.
        tensorrt: release of TensorRT that will read a calibration cache.
        keep: layers to leave in higher precision, by name or glob.
        data: labeled images; by default the pipeline's ``accuracy: dataset``.
        metric: metric of the budget; by default the pipeline's, or the usual one of the task.
        max_drop: largest accepted loss, 0 to 1; by default the pipeline's.
        timeout: seconds for finding layers to leave in higher precision.
    """

    ranges: RangeTable | str | Path | None = None
    task: str | None = None
    method: str | None = None
    limit: int | None = None
    target: str = "ort"
    tensorrt: str = USUAL_TRT
    keep: Sequence[str] = ()
    data: str | None = None
    metric: str | None = None
    max_drop: float | None = None
    timeout: float = int8_model.BUDGET_S


def quantize(
    source: str | Path | ModelConfig,
    images: str | Path | Sequence[Any] | None = None,
    *,
    model: str | None = None,
    input: str | InputConfig | None = None,
    output: str | Path | None = None,
    options: QuantizeOptions = QuantizeOptions(),
    overrides: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> QuantizedModel:
    """Make a model INT8, and write it to ``output``. Blocks until done.

    For ``cache`` and ``dla``, the scales of a model with Q/DQ nodes are used as they are, and nothing is measured.

    Args:
        source: path of an ONNX or pipeline file, name of a shipped pipeline, or a model's section of a pipeline.
        images: images to calibrate on: a folder, glob or video, or images as :func:`calibrate` takes them; by default
            the pipeline's ``calibrate: images``.
        model: name of the model, where the pipeline has several.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it with certainty.
        output: path of the file, or a folder for a file named after the model; None writes nothing.
        options: target, accuracy budget and all other options.
        overrides: settings of a pipeline, as ``KEY=VALUE``.
        on_progress: function to call with each step and for each image; an exception in it ends the work within an
            image's time.

    Raises:
        ConfigError: there is no such model, target, method, metric or images, or a setting does not fit a model that
            comes with its scales.
        BuildError: the budget cannot be met; the error names the layers that cost most.
        CalibrationError: there are too few images.
        ArtifactError: a file cannot be written.
    """
    target = options.target
    if target not in TARGETS:
        known = ", ".join(TARGETS)
        raise ConfigError(
            f"there is no target {target!r}{nearest(target, TARGETS)}", where="--target", fix=f"one of {known}"
        )
    is_file = not isinstance(source, ModelConfig) and Path(source).suffix.lower() == ".onnx"
    if input is None and is_file and target in ("cache", "dla") and is_quantized(load(cast(Path, source))):
        input = ""  # nothing is measured
    needs_task, report = options.data is not None, reporter_of(on_progress)
    with report.ends():
        section = _section(
            source, model, options.task, input, overrides, needs_task=needs_task, images=images, log=report.note
        )
        path = None if output is None else Path(output)
        if path is not None and path.is_dir():
            path /= section.config.onnx.with_suffix(".cache" if target == "cache" else ".int8.onnx").name
        if target in ("cache", "dla") and is_quantized(load(section.config.onnx)):
            _refuse_measuring(section.config, images, options)
            return _write_qdq_form(section.config, target, options.tensorrt, _dla_target(options), path)
        by_task = options.task is not None or not is_file or not isinstance(section.config.task, EmbedTask)
        return _quantize_measured(section, images, options, path, by_task, report)


def _dla_target(options: QuantizeOptions) -> Dla:
    """Return the DLA for the release that reads a cache; the usual one for other targets and releases without one."""
    if options.target != "cache":
        return units.USUAL_DLA
    version_number(options.tensorrt)
    found = Dla(tensorrt=options.tensorrt)
    return found if found.release.answer != "no" else units.USUAL_DLA


def _refuse_measuring(config: ModelConfig, images: object, options: QuantizeOptions) -> None:
    """Raise ConfigError for settings that do not apply to a model with its scales."""
    settings = {
        "--ranges": options.ranges is not None,
        "--images": images is not None,
        "--method": options.method,
        "--limit": options.limit,
        "--keep": options.keep,
        "--data": options.data,
        "--max-drop": options.max_drop,
    }
    if given := [option for option, value in settings.items() if value]:
        raise _own_scales_error(config, " and ".join(given))


def _quantize_measured(
    section: ModelSection,
    images: str | Path | Sequence[Any] | None,
    options: QuantizeOptions,
    path: Path | None,
    by_task: bool,
    report: Reporter,
) -> QuantizedModel:
    """Quantize a model within its accuracy budget, from images or ranges, and write it."""
    target, dla = options.target, _dla_target(options)
    section, dataset = _with_images(section, images, options.method, options.limit)
    section = section.with_kept_layers(options.keep).with_budget(options.data, options.metric, options.max_drop)
    run = Run(section.where, section.directory, report.note, report.count, report.stop, section.tracking)
    engine = cast(units.Target, "dla" if target == "cache" else target)
    if options.ranges is not None:
        calibrated = with_ranges(section.config, options.ranges, images=dataset, where=section.where)
    else:  # a cache lists every tensor
        wanted = None if target == "cache" else engine
        calibrated = calibrate_section(section.config, target=wanted, images=dataset, run=run)
    outcome = int8_model.quantize_section(
        section.config,
        calibrated,
        target=engine,
        dla=dla,
        run=run,
        budget_s=options.timeout,
        by_task=by_task,
        smooth=target != "cache",
    )
    if path is not None and target == "cache":
        graph, scheme = read(outcome.prepared), outcome.quantized.scheme
        replace_text(path, cache_text(graph, scheme, outcome.table.amax, options.tensorrt))
        if kept := trt_scheme.fp16_exceptions(graph, scheme):  # as trtexec's option takes them
            replace_text(path.with_suffix(".layer_precisions"), trt_scheme.layer_precisions(kept))
    elif path is not None:
        replace_bytes(path, to_bytes(outcome.model))
    made = outcome.prepared if target == "cache" else outcome.model
    source = "" if dataset is None else _IN_MEMORY
    return QuantizedModel(section.config, made, path, tuple(summary(outcome)), outcome=outcome, images=source)


def _write_qdq_form(config: ModelConfig, target: str, tensorrt: str, dla: Dla, path: Path | None) -> QuantizedModel:
    """Write the form for a DLA of a model that came with Q/DQ nodes.

    That is a calibration cache and its float model, or the Q/DQ form with a scale on every tensor.
    """
    found = from_qdq.qdq_section(config)
    model = found.model if target == "cache" else found.dla_form(dla)
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
