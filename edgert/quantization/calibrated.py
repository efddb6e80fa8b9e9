"""Ranges of a model of a pipeline file, measured on its images by its own preprocessing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.config import CalibrateConfig, ModelConfig
from edgert.dataset import ImageDataset, ImageFeed, feed_of, open_images
from edgert.errors import CalibrationError, EdgertError
from edgert.graph import Model, Shapes, inputs, load, read, write
from edgert.model_engine import default_profile
from edgert.quantization.calibration.range_calibrator import calibrate
from edgert.quantization.calibration.ranges import RangeTable, load_table
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.equalization import smooth_activations
from edgert.quantization.prepare import calibrated, prepare
from edgert.quantization.quantizer import Recipe, equalized, matching
from edgert.quantization.run import ALONE, Progress, Run, needs_images
from edgert.quantization.scheme.scheme import Scheme, Target, scheme

SMOOTHING_IMAGES = 32
"""Images for measuring the ranges of channels."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A float model ready to be quantized.

    Attributes:
        model: prepared; equalized where the section asks for it.
        table: its ranges.
        feed: the images they were measured on; None where ranges came from a file and no images with them.
        whole: the scheme that decided which ranges to measure, with nothing kept; None where all were, or came from
            a file.
    """

    model: Model
    table: RangeTable
    feed: ImageFeed | None
    whole: Scheme | None = None

    def whole_for(self, recipe: Recipe) -> Scheme | None:
        """The scheme, if it is the recipe's."""
        return self.whole if self.whole is not None and self.whole.target == recipe.target else None

    def feeds(self, count: int, first: int = 0) -> Sequence[Feeds]:
        """Images from number ``first`` on, at most ``count``, as the model's input; none without images."""
        if self.feed is None:
            return []
        return [self.feed.feeds(index) for index in range(first, min(first + count, len(self.feed)))]

    def more(self) -> Mapping[str, Histogram]:
        """The ranges of all tensors that the table does not know, measured on the same images.

        Raises:
            CalibrationError: there are no images.
        """
        missing = sorted(set(calibrated(read(self.model))) - self.table.histograms.keys())
        if self.feed is None:
            raise CalibrationError(
                f"{len(missing)} tensors have no range, {missing[0]!r} among them",
                why="these ranges were measured for other settings, and there are no images to measure more on",
                fix="calibrate again, or name the images",
            )
        return calibrate(self.model, self.feed, tensors=missing, early_stop=self._stopped_early).histograms

    def smoothed(self, recipe: Recipe, *, stop: threading.Event | None = None) -> Calibrated | None:
        """The same function with smoothed activations (:mod:`~edgert.quantization.equalization`), its ranges measured
        anew; None where nothing can be smoothed, or there are no images to measure it on.

        Raises:
            CalibrationError: the new ranges cannot be measured; stopped.
            BuildError: ONNX Runtime cannot run the model.
        """
        graph = read(self.model)
        smooth = graph if self.feed is None else smooth_activations(graph, self.feeds(SMOOTHING_IMAGES), self.model)
        if smooth is graph or self.feed is None:
            return None
        model = write(smooth, self.model)
        whole = scheme(read(model), recipe.target, dla=recipe.dla)
        table = calibrate(
            model,
            self.feed,
            method=self.table.method,
            percentile=self.table.percentile,
            tensors=whole.needed,
            early_stop=self._stopped_early,
            stop=stop,
        )
        return Calibrated(model, table, self.feed, whole)

    @property
    def _stopped_early(self) -> bool:
        return self.table.available is not None and self.table.images < self.table.available


def prepared(model: Model, config: ModelConfig) -> Model:
    """The model that ranges are measured on.

    Raises:
        ModelError: it cannot be quantized: it is already, its size is open, or it has no weights.
    """
    if len(config.profiles) > 1:
        raise CalibrationError(
            f"a model with {len(config.profiles)} profiles is quantized at one size",
            why="ranges belong to the size they were measured at",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    ready = prepare(model, one_size(model, config))
    return equalized(ready) if config.quantize.equalize else ready


def one_size(model: Model, config: ModelConfig) -> Shapes:
    """The shapes that ranges are measured at: of the first profile, one image at a time where the batch is open.

    Raises:
        ModelError: dimensions other than the batch stay open.
    """
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    open_ones = {spec.name for spec in inputs(model) if spec.shape and not isinstance(spec.shape[0], int)}
    return {name: (1, *sizes[1:]) if name in open_ones else sizes for name, sizes in shapes.items()}


def calibrate_section(
    config: ModelConfig,
    *,
    target: Target | None = None,
    run: Run = ALONE,
    images: ImageDataset | None = None,
    workers: int = 1,
    dask: str = "",
    state: Path | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Measures the ranges of a model. Blocks until done.

    Args:
        config: the model's section; its ``calibrate`` has the images and the method.
        target: who alone will be given these ranges, so that tensors it rounds nowhere need not be counted: a third
            to two thirds of the values of common networks. None measures all.
        run: where the section stands, what follows the images, and what ends the measurement.
        images: images to take instead of the section's.
        workers, dask, state: as :func:`~edgert.quantization.calibration.range_calibrator.calibrate` takes them.
        progress: called instead of the run's bar, with the images' names.

    Raises:
        CalibrationError: no images are named, too few are there, or what they do to the model cannot be used.
        EdgertError: the model or the images cannot be read.
    """
    try:
        asked = config.calibrate
        if images is None:
            images = open_images(_images(asked, config), limit=asked.limit if asked else None)
        model = prepared(load(config.onnx), config)
        feed = feed_of(images, model, config)
        method = asked.method if asked and asked.method != "auto" else "mse"
        whole = None if target is None else scheme(read(model), target)
        table = calibrate(
            model,
            feed,
            method=method,
            tensors=None if whole is None else _needed(model, whole, config),
            workers=workers,
            dask=dask,
            early_stop=asked is None or asked.early_stop,
            state=state,
            progress=progress or run.progress,
            stop=run.stop,
        )
    except EdgertError as error:
        raise error.at(run.where)  # noqa: B904 - the same error, with its place
    return Calibrated(model, table, feed, whole)


def with_ranges(config: ModelConfig, ranges: Path, *, where: str = "") -> Calibrated:
    """Takes ranges measured before. Images of the section, if it names any, serve to correct biases and to compare.

    Raises:
        CalibrationError: the file is damaged, or of another model.
        EdgertError: the model or the images cannot be read.
    """
    try:
        model = prepared(load(config.onnx), config)
        table = load_table(ranges, model)
        asked = config.calibrate
        feed = feed_of(open_images(asked.images, limit=asked.limit), model, config) if asked else None
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return Calibrated(model, table, feed)


def _needed(model: Model, whole: Scheme, config: ModelConfig) -> tuple[str, ...]:
    keep = matching(config.quantize.keep, [unit.name for unit in whole.units], "keep")
    return scheme(read(model), whole.target, keep, whole=whole).needed


def _images(asked: CalibrateConfig | None, config: ModelConfig) -> Path:
    if asked is None:
        raise needs_images(
            config, "add calibrate: {images: FOLDER} to the model, or --images FOLDER: 100 to 500 typical ones"
        )
    return asked.images
