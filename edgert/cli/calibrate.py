"""``edgert calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli.option import (
    CalibrationImagesOption,
    DebugOption,
    InputOption,
    MethodOption,
    ModelOption,
    SetOption,
    TargetArgument,
    limit_option,
    output_option,
)
from edgert.cli.target import target_of

if TYPE_CHECKING:
    from edgert.config import ModelConfig


def calibrate(
    target: TargetArgument,
    model: ModelOption = None,
    images: CalibrationImagesOption = None,
    input: InputOption = None,
    output: Annotated[Path, output_option("The range file.")] = Path("ranges.json"),
    method: MethodOption = None,
    limit: Annotated[int | None, limit_option("256 when left out.")] = None,
    workers: Annotated[
        int,
        typer.Option("--workers", metavar="N", min=1, help="Number of processes; one process already uses all cores."),
    ] = 1,
    dask: Annotated[
        str,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Address of a Dask scheduler, whose workers measure; needs the extra dask.",
        ),
    ] = "",
    early_stop: Annotated[
        bool,
        typer.Option("--early-stop/--no-early-stop", help="Stop as soon as more images no longer change the ranges."),
    ] = True,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure the ranges of a model's tensors on typical images, for INT8.

    Images stream through the float model by the pipeline's own preprocessing. The result does not depend on the
    number of workers. Ctrl-C keeps what was counted beside the output; the same command goes on from there.

    Examples:

        edgert calibrate model.onnx --images photos/ --input 'letterbox rgb mean=0 std=255' -o ranges.json

        edgert calibrate pipeline.yaml --model parts
    """
    import threading

    from rich.console import Console

    from edgert.cli.progress import PictureBar
    from edgert.cli.signals import stop_on_signal
    from edgert.precision.calibration import calibrate_section
    from edgert.quantize.table import save_table

    chosen = target_of(target, model=model, input=input, overrides=overrides or (), needs_task=False)
    config = with_images(chosen.config, images, method, limit, early_stop)
    console, stop = Console(stderr=True, highlight=False), threading.Event()
    with PictureBar(console) as bar, stop_on_signal(stop.set):
        calibrated = calibrate_section(
            config,
            where=chosen.where,
            workers=workers,
            dask=dask,
            state=output.with_name(f".{output.name}.state"),
            progress=lambda done, total, name: bar("calibrating", done, total or done),
            stop=stop,
        )
    table = calibrated.table
    save_table(table, output)
    console.print(f"{len(table.histograms)} tensors, {table.images} images, method {table.method}")
    for warning in table.warnings:
        console.print(f"[yellow]•[/] {warning}", markup=True)
    console.print(f"[green]→[/] {output}")


def with_images(
    config: ModelConfig, images: str | None, method: str | None, limit: int | None, early_stop: bool = True
) -> ModelConfig:
    """The section with what was asked for on the command line.

    Raises:
        ConfigError: there is no such method.
    """
    from edgert.config import CalibrateConfig
    from edgert.errors import ConfigError, nearest
    from edgert.quantize import METHODS

    known = (*METHODS, "auto")
    if method is not None and method not in known:
        hint = nearest(method, known)
        raise ConfigError(f"no method {method!r}{hint}", where="--method", fix=f"one of {', '.join(known)}")
    written = config.calibrate.model_dump() if config.calibrate else {}
    given = {"images": images, "method": method, "limit": limit, "early_stop": None if early_stop else False}
    settings = {**written, **{key: value for key, value in given.items() if value is not None}}
    if "images" not in settings:
        return config
    return config.model_copy(update={"calibrate": CalibrateConfig.model_validate(settings)})
