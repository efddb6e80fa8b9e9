"""``edgert quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from edgert.cli.calibrate import with_images
from edgert.cli.option import (
    CalibrationImagesOption,
    DataOption,
    DebugOption,
    InputOption,
    MaxDropOption,
    MethodOption,
    MetricOption,
    ModelOption,
    RangesOption,
    ReportOption,
    SetOption,
    TargetArgument,
    TaskOption,
    limit_option,
    output_option,
    target_option,
    trt_option,
)
from edgert.cli.target import target_of
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dla import Target as Dla
    from edgert.cli.target import Target
    from edgert.config import ModelConfig
    from edgert.precision.outcome import Outcome

_METRIC = "map"


def quantize(
    model_file: TargetArgument,
    model: ModelOption = None,
    output: Annotated[Path | None, output_option("MODEL.int8.onnx when left out.")] = None,
    ranges: RangesOption = None,
    images: CalibrationImagesOption = None,
    input: InputOption = None,
    task: TaskOption = None,
    method: MethodOption = None,
    limit: Annotated[int | None, limit_option("256 when left out.")] = None,
    target: Annotated[
        str,
        target_option("With cache, a calibration cache for TensorRT up to 10; gpu and dla are for TensorRT from 11."),
    ] = "ort",
    trt: Annotated[str, trt_option("It stands in the header of a calibration cache.")] = "10.3.0",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="LAYER", help="Leave a layer in higher precision, by its name or a glob. Repeatable."
        ),
    ] = None,
    data: DataOption = None,
    metric: MetricOption = None,
    max_drop: MaxDropOption = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            metavar="N",
            min=0.1,
            help="Time for finding the layers to leave in higher precision, in minutes.",
        ),
    ] = 10.0,
    report: ReportOption = None,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a model INT8, within an accuracy budget, and report what it costs.

    A model with Q/DQ nodes brings its scales: --target cache and --target dla take these, and no images.

    With --data and --max-drop, or the pipeline's accuracy:, layers are kept in higher precision until the budget holds,
    as few as can be; if none do, nothing is written and the layers that cost most are named. Without labels it is
    compared with FP32 on the calibration images, and layers are kept only where INT8 throughout would spoil it.

    Examples:

        edgert quantize model.onnx --images photos/ --input 'letterbox rgb std=255' -o model.int8.onnx

        edgert quantize pipeline.yaml --report out/int8.html

        edgert quantize pipeline.yaml --target cache --trt 10.3.0 -o model.cache

        edgert quantize model.qdq.onnx --target cache -o model.cache
    """
    from rich.console import Console

    from edgert.artifact.atomic import replace_bytes, replace_text
    from edgert.graph.model import to_bytes
    from edgert.precision.describe import summary

    chosen = target_of(
        model_file, model=model, task=task, input=input, overrides=overrides or (), needs_task=data is not None
    )
    console = Console(stderr=True, highlight=False)
    if _target(target) == "dla" and _is_quantized(chosen.config):
        given = {"--ranges": ranges, "--images": images, "--method": method, "--limit": limit, "--keep": keep,
                 "--data": data, "--max-drop": max_drop, "--report": report}  # fmt: skip
        _refuse([option for option, value in given.items() if value], chosen.config)
        _from_qdq(console, chosen.config, target, trt, output)
        return
    config = _asked(chosen.config, images, method, limit, keep, data, metric, max_drop)
    judged = task is not None or Path(model_file).suffix != ".onnx"
    outcome = _made(console, chosen, config, ranges, target, trt, minutes, judged)
    path = output or Path(config.onnx.with_suffix(".cache" if target == "cache" else ".int8.onnx").name)
    if target == "cache":
        text, exceptions = _cache(outcome, trt)
        replace_text(path, text)
        if exceptions:
            replace_text(path.with_suffix(".layer_precisions"), exceptions)
    else:
        replace_bytes(path, to_bytes(outcome.model))
    for line in summary(outcome):
        console.print(line, markup=False)
    console.print(f"[green]→[/] {path}")
    if report is not None:
        _report(outcome, config, report)
        console.print(f"[green]→[/] {report}")


def _is_quantized(config: ModelConfig) -> bool:
    from edgert.graph.load import load
    from edgert.quantize.prepare import is_quantised

    return is_quantised(load(config.onnx))


def _refuse(options: list[str], config: ModelConfig) -> None:
    """Raises ConfigError if there are any."""
    if options:
        raise ConfigError(
            f"{' and '.join(options)}: {config.onnx.name} is quantized already",
            why="its scales are those of its Q/DQ nodes: nothing is measured, chosen or corrected",
            fix=f"leave {' and '.join(options)} out, or give the float32 model",
        )


def _from_qdq(console: Console, config: ModelConfig, form: str, tensorrt: str, output: Path | None) -> None:
    """Writes what a DLA takes of a model that came with Q/DQ nodes: a calibration cache and the float model that it
    belongs to, or the Q/DQ form with a scale on every tensor."""
    from edgert.artifact.atomic import replace_bytes, replace_text
    from edgert.graph.model import to_bytes
    from edgert.precision.qdq import qdq_section

    dla = _dla(form, tensorrt)
    found = qdq_section(config)
    for text in found.problems:
        console.print(f"warning: {text}", style="yellow", markup=False)
    if form == "cache":
        path = output or Path(config.onnx.with_suffix(".cache").name)
        made = path.with_name(f"{path.stem}.float.onnx")
        replace_text(path, found.cache(tensorrt))
        replace_bytes(made, to_bytes(found.model))
        if found.float_nodes:
            replace_text(path.with_suffix(".layer_precisions"), found.layer_precisions())
        console.print(f"{len(found.scales)} scales of its Q/DQ nodes; the cache belongs to {made}", markup=False)
    else:
        path = output or Path(config.onnx.with_suffix(".int8.onnx").name)
        replace_bytes(path, to_bytes(found.typed(dla) if dla is not None else found.typed()))
        console.print(f"{len(found.scales)} scales of its Q/DQ nodes", markup=False)
    console.print(f"[green]→[/] {path}")


def _asked(
    config: ModelConfig,
    images: str | None,
    method: str | None,
    limit: int | None,
    keep: list[str] | None,
    data: str | None,
    metric: str | None,
    max_drop: float | None,
) -> ModelConfig:
    """The section with what was asked for on the command line."""
    from edgert.config import AccuracyConfig

    config = with_images(config, images, method, limit)
    if keep:
        config = config.model_copy(update={"quantize": config.quantize.model_copy(update={"keep": tuple(keep)})})
    if data is None and max_drop is None:
        return config
    if data is None and config.accuracy is None:
        raise ConfigError("--max-drop of what?", why="no labeled images are named", fix="--data PATH")
    written = config.accuracy.model_dump() if config.accuracy else {"metric": _METRIC, "max_drop": 1.0}
    given = {"dataset": data, "metric": metric, "max_drop": max_drop}
    _check_metric(metric)
    settings = {**written, **{key: value for key, value in given.items() if value is not None}}
    return config.model_copy(update={"accuracy": AccuracyConfig.model_validate(settings)})


def _check_metric(metric: str | None) -> None:
    from edgert.config import AccuracyConfig
    from edgert.errors import nearest

    known = get_args(AccuracyConfig.model_fields["metric"].annotation)
    if metric is not None and metric not in known:
        hint = nearest(metric, known)
        raise ConfigError(f"no metric {metric!r} here{hint}", where="--metric", fix=f"one of {', '.join(known)}")


def _made(
    console: Console,
    chosen: Target,
    config: ModelConfig,
    ranges: Path | None,
    target: str,
    trt: str,
    minutes: float,
    judged: bool,
) -> Outcome:
    import threading

    from edgert.cli.progress import PictureBar
    from edgert.cli.signals import stop_on_signal
    from edgert.precision.calibration import calibrate_section, with_ranges
    from edgert.precision.quantization import quantize_section

    stop = threading.Event()
    with PictureBar(console) as bar, stop_on_signal(stop.set):
        if ranges is not None:
            calibrated = with_ranges(config, ranges, where=chosen.where)
        else:
            calibrated = calibrate_section(
                config,
                target=None if target == "cache" else _target(target),  # a cache lists every tensor
                where=chosen.where,
                progress=lambda done, total, name: bar("calibrating", done, total or done),
                stop=stop,
            )
        return quantize_section(
            config,
            calibrated,
            target=_target(target),
            dla=_dla(target, trt),
            even=target != "cache",
            where=chosen.where,
            directory=chosen.directory,
            budget_s=minutes * 60,
            tell=lambda text: console.print(text, style="dim", markup=False),
            bar=bar,
            stop=stop,
            judged=judged,
        )


def _target(name: str) -> Literal["ort", "gpu", "dla"]:
    if name == "cache" or name == "dla":
        return "dla"
    if name == "ort":
        return "ort"
    if name == "gpu":
        return "gpu"
    from edgert.errors import nearest

    known = ("ort", "gpu", "dla", "cache")
    raise ConfigError(f"no target {name!r}{nearest(name, known)}", where="--target", fix=f"one of {', '.join(known)}")


def _dla(target: str, tensorrt: str) -> Dla | None:
    """Orin's DLA with the release that a cache is for; None for other targets, and where that release has no DLA: the
    cache is for a GPU then."""
    from dla import Target as Dla
    from edgert.quantize.cache import version_number

    if target != "cache":
        return None
    version_number(tensorrt)
    found = Dla(tensorrt=tensorrt)
    return found if found.release.answer != "no" else None


def _cache(outcome: Outcome, version: str) -> tuple[str, str]:
    """The calibration cache, and the layers that trtexec is to leave in FP16, as its option takes them."""
    from edgert.graph.node import read
    from edgert.quantize.cache import cache_of
    from edgert.quantize.exception import fp16_exceptions, layer_precisions

    graph, scheme = read(outcome.prepared), outcome.quantized.scheme
    text = cache_of(graph, scheme, outcome.table.amax, version)
    kept = fp16_exceptions(graph, scheme)
    return text, layer_precisions(kept) if kept else ""


def _report(outcome: Outcome, config: ModelConfig, path: Path) -> None:
    import shlex
    import sys

    from edgert.precision.describe import describe
    from edgert.report import save

    save(describe(outcome, config, command=shlex.join(["edgert", *sys.argv[1:]])), path)
