"""INT8 from Python: ``edgert.calibrate(...)`` and ``edgert.quantize(...)``."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgert.config import CalibrateConfig, EmbedTask, InputConfig, ModelConfig
from edgert.config.short import parse_input
from edgert.dataset import feed_of, open_images
from edgert.errors import CalibrationError
from edgert.graph import Model, load
from edgert.quantization.calibrated import Calibrated, calibrate_section, prepared
from edgert.quantization.calibration.range_calibrator import Progress
from edgert.quantization.calibration.range_calibrator import calibrate as count
from edgert.quantization.calibration.ranges import RangeTable, load_table
from edgert.quantization.int8_model import QuantizationResult, quantize_section
from edgert.quantization.scheme.units import Target

Images = str | Path | Iterable[Any]
"""A folder, glob or video; or images, (h, w, 3) uint8 BGR arrays or files. An iterator is not held in memory."""


def calibrate(
    model: str | Path | ModelConfig,
    images: Images | None = None,
    *,
    input: str | InputConfig = "",
    method: str = "mse",
    limit: int = 256,
    workers: int = 1,
    dask: str = "",
    early_stop: bool = True,
    progress: Progress | None = None,
) -> RangeTable:
    """Measures the ranges of a model's tensors on typical images. Blocks until done.

    Args:
        model: an ONNX file, or a model's section of a pipeline file.
        images: the images; those of the section's ``calibrate`` by default.
        input: what the model wants to see, as ``edgert calibrate --input`` takes it; not for a section.
        method: ``mse``, ``minmax``, ``percentile`` or ``entropy``.
        limit: the most images.
        workers: number of processes; one already uses all cores.
        dask: address of a Dask scheduler, whose workers measure instead.
        early_stop: stops as soon as more images no longer change the ranges.
        progress: called with the images done, how many there are (None while unknown) and the name of the last one.

    Raises:
        CalibrationError: no images, or what they do to the model cannot be used.
        EdgertError: the model or the images cannot be read.
    """
    config = _section(model, input)
    if images is None or isinstance(images, (str, Path)):
        wanted = {"method": method, "limit": limit, "early_stop": early_stop}
        if images is not None:
            config = config.model_copy(
                update={"calibrate": CalibrateConfig.model_validate({"images": images, **wanted})}
            )
        return calibrate_section(config, workers=workers, dask=dask, progress=progress).table
    ready = prepared(load(config.onnx), config)
    feed = feed_of(open_images(images[:limit]), ready, config) if isinstance(images, Sequence) else None
    return count(
        ready,
        feed or _streamed(images, ready, config, limit),
        method=method,
        workers=workers,
        dask=dask,
        early_stop=early_stop,
        progress=progress,
    )


def quantize(
    model: str | Path | ModelConfig,
    images: str | Path | Sequence[Any] | None = None,
    *,
    ranges: RangeTable | str | Path | None = None,
    input: str | InputConfig = "",
    target: Target = "ort",
) -> QuantizationResult:
    """Makes a model INT8; ``outcome.model`` is it, ``edgert.graph.to_bytes`` its file. Blocks until done.

    Args:
        model: an ONNX file, or a model's section of a pipeline file with its accuracy budget and settings.
        images: images to calibrate on and to correct biases with.
        ranges: of :func:`calibrate`, or a file of them; measured on ``images`` by default.
        input: what the model wants to see; not for a section.
        target: who will run it: ``ort``, ``gpu`` or ``dla`` (TensorRT >= 11).

    Raises:
        CalibrationError: neither images nor ranges; ranges of another model.
        BuildError: the accuracy budget cannot be met.
        EdgertError: the model or the images cannot be read.
    """
    config = _section(model, input)
    dataset = None if images is None else open_images(images, limit=None)
    if ranges is None:
        calibrated = calibrate_section(config, target=target, images=dataset)
    else:
        ready = prepared(load(config.onnx), config)
        table = ranges if isinstance(ranges, RangeTable) else load_table(ranges, ready)
        calibrated = Calibrated(ready, table, feed_of(dataset, ready, config) if dataset else None)
    return quantize_section(config, calibrated, target=target, judged=isinstance(model, ModelConfig), smooth=True)


def _section(model: str | Path | ModelConfig, input: str | InputConfig) -> ModelConfig:
    if isinstance(model, ModelConfig):
        if input:
            raise CalibrationError("input is for ONNX files", why="a section has its own", fix="leave it out")
        return model
    seen = input if isinstance(input, InputConfig) else parse_input(input, "input")
    return ModelConfig(onnx=Path(model).absolute(), task=EmbedTask(embed="none"), input=seen)


def _streamed(images: Iterable[Any], model: Model, config: ModelConfig, limit: int) -> Iterator[Any]:
    for number, image in enumerate(images):
        if number == limit:
            return
        yield feed_of(open_images([image]), model, config).feeds(0)
