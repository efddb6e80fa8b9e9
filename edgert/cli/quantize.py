"""``edgert quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgert.cli.calibrate import ImagesOption, LimitOption, MethodOption, with_pictures
from edgert.cli.option import DebugOption, SetOption
from edgert.cli.target import InputOption, ModelOption, TargetArgument, TaskOption, target_of
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dla import Target as Dla
    from edgert.cli.target import Target
    from edgert.config import ModelConfig
    from edgert.precision.outcome import Outcome

_METRICS = ("map50", "map", "top1", "top5", "miou", "cosine")


def quantize(
    target: TargetArgument,
    model: ModelOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The INT8 model; MODEL.int8.onnx by default.")
    ] = None,
    ranges: Annotated[
        Path | None, typer.Option("--ranges", metavar="FILE", help="Of edgert calibrate; else ranges are measured now.")
    ] = None,
    images: ImagesOption = None,
    input: InputOption = None,
    task: TaskOption = None,
    method: MethodOption = None,
    limit: LimitOption = None,
    form: Annotated[
        str, typer.Option("--for", metavar="WHO", help="ort, gpu or dla (TensorRT 11 on), or cache (TensorRT to 10).")
    ] = "ort",
    tensorrt: Annotated[
        str, typer.Option("--tensorrt", metavar="VERSION", help="Whose header a calibration cache gets.")
    ] = "10.3.0",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="LAYER", help="Leave a layer in higher precision; a name or glob. Repeatable."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Labelled pictures, as edgert eval takes them.")
    ] = None,
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="What the budget is of.")] = "map",
    max_drop: Annotated[
        float | None, typer.Option("--max-drop", metavar="0-1", min=0, max=1, help="Largest loss against FP32.")
    ] = None,
    minutes: Annotated[
        float,
        typer.Option("--minutes", metavar="N", min=0.1, help="For finding layers to keep, if the budget asks."),
    ] = 10.0,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page about it.")] = None,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a model INT8, within an accuracy budget, and say what it cost.

    With --data and --max-drop, or the pipeline's accuracy:, layers are kept in higher precision until the budget holds,
    as few as can be; if none do, nothing is written and the layers that cost most are named. Without labels it is
    compared with FP32 on the calibration pictures, and layers are kept only where INT8 throughout would spoil it.

    Examples:

        edgert quantize model.onnx --images photos/ --input 'letterbox rgb std=255' -o model.int8.onnx

        edgert quantize pipeline.yaml --report out/int8.html

        edgert quantize pipeline.yaml --for cache --tensorrt 10.3.0 -o model.cache
    """
    from rich.console import Console

    from edgert.artifact.atomic import replace_bytes, replace_text
    from edgert.graph.model import to_bytes

    chosen = target_of(
        target, model=model, task=task, input=input, overrides=overrides or (), needs_task=data is not None
    )
    config = _asked(chosen.config, images, method, limit, keep, data, metric, max_drop)
    console = Console(stderr=True, highlight=False)
    judged = task is not None or Path(target).suffix != ".onnx"
    outcome = _made(console, chosen, config, ranges, form, tensorrt, minutes, judged)
    path = output or Path(config.onnx.with_suffix(".cache" if form == "cache" else ".int8.onnx").name)
    if form == "cache":
        text, exceptions = _cache(outcome, tensorrt)
        replace_text(path, text)
        if exceptions:
            replace_text(path.with_suffix(".layer_precisions"), exceptions)
    else:
        replace_bytes(path, to_bytes(outcome.model))
    for line in outcome.summary():
        console.print(line, markup=False)
    console.print(f"[green]→[/] {path}")
    if report is not None:
        _report(outcome, config, report)
        console.print(f"[green]→[/] {report}")


def _asked(
    config: ModelConfig,
    images: str | None,
    method: str | None,
    limit: int | None,
    keep: list[str] | None,
    data: str | None,
    metric: str,
    max_drop: float | None,
) -> ModelConfig:
    """The section with what was asked for on the command line."""
    from edgert.config import AccuracyConfig

    config = with_pictures(config, images, method, limit)
    if keep:
        config = config.model_copy(update={"quantize": config.quantize.model_copy(update={"keep": tuple(keep)})})
    if data is None and max_drop is None:
        return config
    if data is None and config.accuracy is None:
        raise ConfigError("--max-drop of what?", why="no labelled pictures are named", fix="--data PATH")
    written = config.accuracy.model_dump() if config.accuracy else {"metric": metric, "max_drop": 1.0}
    given = {"dataset": data, "max_drop": max_drop}
    settings = {**written, **{key: value for key, value in given.items() if value is not None}}
    return config.model_copy(update={"accuracy": AccuracyConfig.model_validate(settings)})


def _made(
    console: Console,
    chosen: Target,
    config: ModelConfig,
    ranges: Path | None,
    form: str,
    tensorrt: str,
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
                target=None if form == "cache" else _target(form),  # a cache lists every tensor
                where=chosen.where,
                progress=lambda done, total, name: bar("calibrating", done, total or done),
                stop=stop,
            )
        return quantize_section(
            config,
            calibrated,
            target=_target(form),
            dla=_dla(form, tensorrt),
            even=form != "cache",
            where=chosen.where,
            directory=chosen.directory,
            budget_s=minutes * 60,
            tell=lambda text: console.print(text, style="dim", markup=False),
            bar=bar,
            stop=stop,
            judged=judged,
        )


def _target(form: str) -> Literal["ort", "gpu", "dla"]:
    if form == "cache" or form == "dla":
        return "dla"
    if form == "ort":
        return "ort"
    if form == "gpu":
        return "gpu"
    from edgert.errors import nearest

    known = ("ort", "gpu", "dla", "cache")
    raise ConfigError(f"no form {form!r}{nearest(form, known)}", where="--for", fix=f"one of {', '.join(known)}")


def _dla(form: str, tensorrt: str) -> Dla | None:
    """Orin's DLA with the release that a cache is for; None for other forms, and where that release has no DLA: the
    cache is for a GPU then."""
    from dla import Target as Dla
    from edgert.quantize.cache import version_number

    if form != "cache":
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
