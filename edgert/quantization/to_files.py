"""Range files, INT8 models and calibration caches written: what ``edgert calibrate`` and ``edgert quantize`` do."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dla import Target as Dla
from edgert.config import ModelConfig
from edgert.errors import ConfigError, nearest
from edgert.files import replace_bytes, replace_text
from edgert.graph import load, read, to_bytes
from edgert.quantization.calibrated import Calibrated, calibrate_section, with_ranges
from edgert.quantization.calibration.ranges import save_table
from edgert.quantization.describe import describe, summary
from edgert.quantization.from_qdq import qdq_section
from edgert.quantization.int8_model import BUDGET_S, QuantizationResult, quantize_section
from edgert.quantization.lowering.trt_cache import cache_of, version_number
from edgert.quantization.quantizer import ALONE, Bar, Log, Run
from edgert.quantization.scheme.trt_scheme import fp16_exceptions, layer_precisions
from edgert.quantization.scheme.units import USUAL_DLA, Target, is_quantized
from edgert.quantization.section import ModelSection, model_section
from edgert.report import save


def calibrate(
    source: str | Path,
    *,
    model: str | None = None,
    images: str | None = None,
    input: str | None = None,
    output: Path | None = None,
    method: str | None = None,
    limit: int | None = None,
    workers: int = 1,
    dask: str = "",
    early_stop: bool = True,
    overrides: Sequence[str] = (),
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> Calibrated:
    """Measures the ranges of a model's tensors. Blocks until done.

    Args:
        source: an ONNX file, a pipeline file, or the name of a shipped pipeline.
        model: which model of the pipeline, where there are several.
        images: a folder, a glob or a video; those of the pipeline's ``calibrate:`` by default.
        input: preprocessing of an ONNX file, as it stands in YAML.
        output: where the range file goes, beside which an interrupted measurement is saved; None: nowhere.
        method: mse, minmax, percentile, entropy or auto.
        limit: at most so many images.
        workers: processes.
        dask: address of a Dask scheduler.
        early_stop: stops when more images no longer change the ranges.
        overrides: ``KEY=VALUE`` of a pipeline.
        bar: moved while images are counted.
        stop: ends it when set, within an image's time.

    Raises:
        ConfigError: no such model, method or images.
        CalibrationError: too few images, or stopped.
        ArtifactError: the range file cannot be written.
    """
    read = model_section(source, model=model, input=input, overrides=overrides, needs_task=False)
    section = read.calibrated_on(images, method, limit, early_stop)
    found = calibrate_section(
        section.config,
        run=Run(section.where, section.directory, bar=bar, stop=stop),
        workers=workers,
        dask=dask,
        state=None if output is None else output.with_name(f".{output.name}.state"),
    )
    if output is not None:
        save_table(found.table, output)
    return found


TARGETS = ("ort", "gpu", "dla", "cache")
"""What an INT8 model can be made for; ``cache`` is a calibration cache for TensorRT <= 10."""
USUAL_TRT = "10.3.0"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedFiles:
    """What was made, and where it was written.

    Attributes:
        config: the model's section, as it was used.
        path: the INT8 model, or the calibration cache.
        lines: what it cost, for people.
        problems: what was wrong with the scales that a model brought.
        outcome: how it was made; None of a model that brought its scales.
    """

    config: ModelConfig
    path: Path
    lines: tuple[str, ...]
    problems: tuple[str, ...] = ()
    outcome: QuantizationResult | None = None


def quantize(
    source: str | Path,
    *,
    model: str | None = None,
    output: Path | None = None,
    ranges: Path | None = None,
    images: str | None = None,
    input: str | None = None,
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
    report: Path | None = None,
    command: str = "",
    overrides: Sequence[str] = (),
    log: Log | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> QuantizedFiles:
    """Makes a model INT8 and writes it. Blocks until done.

    A model with Q/DQ nodes brings its scales: for ``cache`` and ``dla`` these are taken, and nothing is measured.

    Args:
        source: an ONNX file, a pipeline file, or the name of a shipped pipeline.
        model: which model of the pipeline, where there are several.
        output: the file; named after the model by default.
        ranges: a range file, instead of measuring.
        images: what INT8 is calibrated on; the pipeline's ``calibrate: images`` by default.
        task, input: of an ONNX file, as they stand in YAML.
        method: mse, minmax, percentile, entropy or auto.
        limit: at most so many images.
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
        ConfigError: no such model, target, method, metric or images; or settings for a model that brings its scales.
        BuildError: the budget cannot be met; names the layers that cost most.
        CalibrationError: too few images, or stopped.
        ArtifactError: it cannot be written.
    """
    read_as = _engine(target)
    section = model_section(
        source, model=model, task=task, input=input, overrides=overrides, needs_task=data is not None
    )
    if read_as == "dla" and is_quantized(load(section.config.onnx)):
        settings = {"--ranges": ranges, "--images": images, "--method": method, "--limit": limit, "--keep": keep,
                    "--data": data, "--max-drop": max_drop, "--report": report}  # fmt: skip
        if given := [option for option, value in settings.items() if value]:
            raise _settled(given, section.config)
        return _of_qdq(section.config, target, trt, output)
    section = section.calibrated_on(images, method, limit).keeping(keep).within(data, metric, max_drop)
    judged = task is not None or Path(source).suffix != ".onnx"
    run = Run(section.where, section.directory, log or ALONE.log, bar, stop)
    outcome = _made(section, ranges, target, _dla(target, trt), budget_s, judged, run)
    path = output or _path(section.config, target)
    if target == "cache":
        _write_cache(outcome, trt, path)
    else:
        replace_bytes(path, to_bytes(outcome.model))
    if report is not None:
        save(describe(outcome, section.config, command=command), report)
    return QuantizedFiles(section.config, path, tuple(summary(outcome)), outcome=outcome)


def _engine(target: str) -> Target:
    if target in ("cache", "dla"):
        return "dla"
    if target == "ort":
        return "ort"
    if target == "gpu":
        return "gpu"
    known = ", ".join(TARGETS)
    raise ConfigError(f"no target {target!r}{nearest(target, TARGETS)}", where="--target", fix=f"one of {known}")


def _path(config: ModelConfig, target: str) -> Path:
    return Path(config.onnx.with_suffix(".cache" if target == "cache" else ".int8.onnx").name)


def _settled(options: Sequence[str], config: ModelConfig) -> ConfigError:
    given = " and ".join(options)
    return ConfigError(
        f"{given}: {config.onnx.name} is quantized already",
        why="its scales are those of its Q/DQ nodes: nothing is measured, chosen or corrected",
        fix=f"leave {given} out, or give the float32 model",
    )


def _made(
    section: ModelSection, ranges: Path | None, target: str, dla: Dla, budget_s: float, judged: bool, run: Run
) -> QuantizationResult:
    if ranges is not None:
        calibrated = with_ranges(section.config, ranges, where=section.where)
    else:  # a cache lists every tensor
        calibrated = calibrate_section(section.config, target=None if target == "cache" else _engine(target), run=run)
    return quantize_section(
        section.config,
        calibrated,
        target=_engine(target),
        dla=dla,
        run=run,
        budget_s=budget_s,
        judged=judged,
        smooth=target != "cache",
    )


def _dla(target: str, tensorrt: str) -> Dla:
    """Orin's DLA, for a cache with the release that will read it, unless that has no DLA: the cache is for a GPU
    then."""
    if target != "cache":
        return USUAL_DLA
    version_number(tensorrt)
    found = Dla(tensorrt=tensorrt)
    return found if found.release.answer != "no" else USUAL_DLA


def _write_cache(outcome: QuantizationResult, version: str, path: Path) -> None:
    """The calibration cache, and beside it the layers that trtexec is to leave in FP16, as its option takes them."""
    graph, scheme = read(outcome.prepared), outcome.quantized.scheme
    replace_text(path, cache_of(graph, scheme, outcome.table.amax, version))
    if kept := fp16_exceptions(graph, scheme):
        replace_text(path.with_suffix(".layer_precisions"), layer_precisions(kept))


def _of_qdq(config: ModelConfig, target: str, tensorrt: str, output: Path | None) -> QuantizedFiles:
    """Writes what a DLA takes of a model that came with Q/DQ nodes: a calibration cache and the float model that it
    belongs to, or the Q/DQ form with a scale on every tensor."""
    found, dla = qdq_section(config), _dla(target, tensorrt)
    path = output or _path(config, target)
    line = f"{len(found.scales)} scales of its Q/DQ nodes"
    if target == "cache":
        made = path.with_name(f"{path.stem}.float.onnx")
        replace_text(path, found.cache(tensorrt))
        replace_bytes(made, to_bytes(found.model))
        if found.float_nodes:
            replace_text(path.with_suffix(".layer_precisions"), found.layer_precisions())
        line = f"{line}; the cache belongs to {made}"
    else:
        replace_bytes(path, to_bytes(found.typed(dla)))
    return QuantizedFiles(config, path, (line,), tuple(found.problems))
