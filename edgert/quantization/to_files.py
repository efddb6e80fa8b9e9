"""Making and writing ranges, INT8 models and calibration caches: ``edgert calibrate`` and ``edgert quantize``."""

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
from edgert.quantization.run import Log, Run
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import USUAL_DLA, Target
from edgert.quantization.section import ModelSection, model_section
from edgert.report.quantization_page import render
from edgert.reporter import OnProgress, Reporter, reporter_of

Images = str | Path | Iterable[Any]
"""A folder, glob or video; or images, (h, w, 3) uint8 BGR arrays or files. An iterator is not held in memory."""
_LIMIT = 256  # images where nothing else is said
_IN_MEMORY = "images in memory"
TARGETS = ("ort", "gpu", "dla", "cache")
"""Targets of an INT8 model; ``cache`` is a calibration cache for TensorRT <= 10."""
USUAL_TRT = "10.3.0"


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Options for measuring ranges.

    Attributes:
        method: mse, minmax, percentile, entropy or auto; the pipeline's, or mse, by default.
        limit: at most this many images, 256 by default.
        workers: processes; one already uses all cores.
        dask: address of a Dask scheduler, whose workers measure instead.
        early_stop: stops when more images no longer change the ranges.
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
    """Measure the ranges of a model's tensors.

    Blocks until done.

    Args:
        source: an ONNX file, a pipeline file, the name of a shipped pipeline, or a model's section of a pipeline.
        images: see :data:`Images`; those of the pipeline's ``calibrate:`` by default.
        model: which model of the pipeline, where there are several.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it for sure.
        output: where the range file goes, beside which an interrupted measurement is saved; None: nowhere.
        options: how they are measured.
        overrides: ``KEY=VALUE`` of a pipeline.
        on_progress: called for each image, and with what was inferred about an ONNX file. An exception in it ends the
            work within an image's time; the next call with the same ``output`` resumes.

    Raises:
        ConfigError: no such model, method or images; or nothing shows the preprocessing of an ONNX file.
        CalibrationError: too few images, values that cannot be used, or stopped.
        ArtifactError: the range file cannot be written.
    """
    report, file = reporter_of(on_progress), None if output is None else Path(output)
    with report.ends():
        section = _section(source, model, None, input, overrides, needs_task=False, images=images, log=report.note)
        state = None if file is None else file.with_name(f".{file.name}.state")
        run = Run(section.where, section.directory, bar=report.count, stop=report.stop)
        if images is None or isinstance(images, (str, Path, Sequence)):
            section, dataset = _on_images(section, images, options.method, options.limit, options.early_stop)
            table = calibrate_section(
                section.config, run=run, images=dataset, workers=options.workers, dask=options.dask, state=state
            ).table
        else:
            table = _on_stream(section.config, images, options, run, state)
        if file is not None:
            save_table(table, file)
    return table


def _on_stream(
    config: ModelConfig, images: Iterable[Any], options: CalibrateOptions, run: Run, state: Path | None
) -> RangeTable:
    """Measure ranges on images that are not held in memory."""
    ready, some = prepared(load(config.onnx), config), islice(images, options.limit or _LIMIT)
    feed = (feed_of(open_images([image]), ready, config).feeds(0) for image in some)
    return measured(
        ready,
        feed,
        method="mse" if options.method in (None, "auto") else options.method,
        workers=options.workers,
        dask=options.dask,
        early_stop=options.early_stop,
        state=state,
        progress=run.progress,
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
        images: what it was calibrated on, for the report, where no file or folder names that.
    """

    config: ModelConfig
    model: Model
    path: Path | None
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()
    outcome: QuantizationResult | None = None
    images: str = ""

    def save_report(self, path: str | Path, command: str = "") -> None:
        """Write one HTML page about it.

        Args:
            path: of the page.
            command: what the page shows as having made the model.

        Raises:
            ConfigError: the model has scales of its own: nothing was measured.
            ArtifactError: the page cannot be written.
        """
        if self.outcome is None:
            raise _own_scales(self.config, "--report")
        replace_text(Path(path), render(describe(self.outcome, self.config, command=command, source=self.images)))


def _own_scales(config: ModelConfig, named: str) -> ConfigError:
    return ConfigError(
        f"{named}: {config.onnx.name} is quantized already",
        why="its scales are those of its Q/DQ nodes: nothing is measured, chosen or corrected",
        fix=f"leave {named} out, or give the float32 model",
    )


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Options for making an INT8 model.

    Attributes:
        ranges: of :func:`edgert.calibrate`, or a file of them, instead of measuring.
        task: of an ONNX file, as written in YAML; inferred where the file or its family shows it for sure.
        method: mse, minmax, percentile, entropy or auto.
        limit: at most this many images, 256 by default.
        target: ``ort``, ``gpu`` or ``dla``; or ``cache``, a calibration cache for TensorRT <= 10.
        tensorrt: its release, for the header of a calibration cache.
        keep: layers to leave in higher precision, by name or glob.
        data: labeled images; the pipeline's ``accuracy: dataset`` by default.
        metric: what the budget is of; the pipeline's, or map, by default.
        max_drop: largest loss that is accepted, 0 to 1; the pipeline's by default.
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
    timeout: float = BUDGET_S


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
    """Make a model INT8, and write it to ``output``.

    Blocks until done. A model with Q/DQ nodes has its own scales: for ``cache`` and ``dla`` these are taken, and
    nothing is measured.

    Args:
        source: an ONNX file, a pipeline file, the name of a shipped pipeline, or a model's section of a pipeline.
        images: what INT8 is calibrated on, a folder, glob or video, or images as :func:`calibrate` takes them; the
            pipeline's ``calibrate: images`` by default.
        model: which model of the pipeline, where there are several.
        input: preprocessing of an ONNX file, as written in YAML; inferred where the file, its family or the images show
            it for sure.
        output: the file, or the folder of one that is named after the model; None: nowhere.
        options: target, accuracy budget and everything else.
        overrides: ``KEY=VALUE`` of a pipeline.
        on_progress: called with each step and for each image; what it raises ends the work within an image's time.

    Raises:
        ConfigError: no such model, target, method, metric or images; or settings for a model that has its own scales.
        BuildError: the budget cannot be met; names the layers that cost most.
        CalibrationError: too few images.
        ArtifactError: it cannot be written.
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
            return _of_qdq(section.config, target, options.tensorrt, _dla_of(options), path)
        judged = options.task is not None or not is_file or not isinstance(section.config.task, EmbedTask)
        return _measured(section, images, options, path, judged, report)


def _dla_of(options: QuantizeOptions) -> Dla:
    """Return the DLA of the release that will read a cache, unless that has none: the cache is for a GPU then."""
    if options.target != "cache":
        return USUAL_DLA
    version_number(options.tensorrt)
    found = Dla(tensorrt=options.tensorrt)
    return found if found.release.answer != "no" else USUAL_DLA


def _refuse_measuring(config: ModelConfig, images: object, options: QuantizeOptions) -> None:
    """Raise ConfigError where a model with scales of its own is to be measured."""
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
        raise _own_scales(config, " and ".join(given))


def _measured(
    section: ModelSection,
    images: str | Path | Sequence[Any] | None,
    options: QuantizeOptions,
    path: Path | None,
    judged: bool,
    report: Reporter,
) -> QuantizedModel:
    """Measure ranges, make the model within its accuracy budget, and write it."""
    target, dla = options.target, _dla_of(options)
    section, dataset = _on_images(section, images, options.method, options.limit)
    section = section.keeping(options.keep).within(options.data, options.metric, options.max_drop)
    run = Run(section.where, section.directory, report.note, report.count, report.stop, section.tracking)
    engine = cast(Target, "dla" if target == "cache" else target)
    if options.ranges is not None:
        calibrated = with_ranges(section.config, options.ranges, images=dataset, where=section.where)
    else:  # a cache lists every tensor
        wanted = None if target == "cache" else engine
        calibrated = calibrate_section(section.config, target=wanted, images=dataset, run=run)
    outcome = quantize_section(
        section.config,
        calibrated,
        target=engine,
        dla=dla,
        run=run,
        budget_s=options.timeout,
        judged=judged,
        smooth=target != "cache",
    )
    if path is not None and target == "cache":
        graph, scheme = read(outcome.prepared), outcome.quantized.scheme
        replace_text(path, cache_of(graph, scheme, outcome.table.amax, options.tensorrt))
        if kept := fp16_exceptions(graph, scheme):  # layers that trtexec is to leave in FP16, as its option takes them
            replace_text(path.with_suffix(".layer_precisions"), layer_precisions(kept))
    elif path is not None:
        replace_bytes(path, to_bytes(outcome.model))
    made = outcome.prepared if target == "cache" else outcome.model
    source = "" if dataset is None else _IN_MEMORY
    return QuantizedModel(section.config, made, path, tuple(summary(outcome)), outcome=outcome, images=source)


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
