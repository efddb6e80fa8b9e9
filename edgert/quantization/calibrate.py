"""The ranges of a model's tensors, measured on typical images: what ``edgert calibrate`` does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from edgert.quantization.calibrated import Calibrated, calibrate_section
from edgert.quantization.calibration.ranges import save_table
from edgert.quantization.run import Bar, Run
from edgert.quantization.section import model_section


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
