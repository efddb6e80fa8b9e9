"""Ranges of a model of a pipeline file, measured on its pictures by its own preprocessing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.album import Album, open_album
from edgert.config import CalibrateConfig, ModelConfig
from edgert.errors import CalibrationError, EdgertError
from edgert.feed import PictureFeed, feed_of
from edgert.graph.load import load
from edgert.graph.model import Model
from edgert.graph.node import read
from edgert.quantize.calibrate import Progress, calibrate
from edgert.quantize.prepare import prepare
from edgert.quantize.recipe import equalized
from edgert.quantize.scheme import Target, scheme
from edgert.quantize.table import RangeTable, load_table
from edgert.quantize.walk import Feeds
from edgert.ready import default_profile


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A float model ready to be quantised.

    Attributes:
        model: prepared; equalised where the section asks for it.
        table: its ranges.
        feed: the pictures they were measured on; None where ranges came from a file and no pictures with them.
    """

    model: Model
    table: RangeTable
    feed: PictureFeed | None

    def feeds(self, count: int) -> Sequence[Feeds]:
        """The first pictures, at most ``count``, as the model's input; none without pictures."""
        if self.feed is None:
            return []
        return [self.feed.feeds(index) for index in range(min(count, len(self.feed)))]


def prepared(model: Model, config: ModelConfig) -> Model:
    """The model that ranges are measured on.

    Raises:
        ModelError: it cannot be quantised: it is already, its size is open, or it has no weights.
    """
    if len(config.profiles) > 1:
        raise CalibrationError(
            f"a model with {len(config.profiles)} profiles is quantised at one size",
            why="ranges belong to the size they were measured at",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    ready = prepare(model, shapes)
    return equalized(ready) if config.quantize.equalize else ready


def calibrate_section(
    config: ModelConfig,
    *,
    target: Target | None = None,
    where: str = "",
    album: Album | None = None,
    workers: int = 1,
    dask: str = "",
    state: Path | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Calibrated:
    """Measures the ranges of a model. Blocks until done; see :func:`~edgert.quantize.calibrate.calibrate`.

    Args:
        config: the model's section; its ``calibrate`` says on what and how.
        target: who alone will be given these ranges, so that tensors it rounds nowhere need not be counted: a third
            to two thirds of the values of common networks. None measures all.
        where: its place in the file, for errors.
        album: pictures to take instead of the section's.

    Raises:
        CalibrationError: no pictures are named, too few are there, or what they do to the model cannot be used.
        EdgertError: the model or the pictures cannot be read.
    """
    try:
        asked = config.calibrate
        if album is None:
            album = open_album(_pictures(asked, config), limit=asked.limit if asked else None)
        model = prepared(load(config.onnx), config)
        feed = feed_of(album, model, config)
        method = asked.method if asked and asked.method != "auto" else "mse"
        table = calibrate(
            model,
            feed,
            method=method,
            tensors=None if target is None else scheme(read(model), target).needed,
            workers=workers,
            dask=dask,
            early_stop=asked is None or asked.early_stop,
            state=state,
            progress=progress,
            stop=stop,
        )
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return Calibrated(model, table, feed)


def with_ranges(config: ModelConfig, ranges: Path, *, where: str = "") -> Calibrated:
    """Takes ranges measured before. Pictures of the section, if it names any, serve to correct biases and to compare.

    Raises:
        CalibrationError: the file is damaged, or of another model.
        EdgertError: the model or the pictures cannot be read.
    """
    try:
        model = prepared(load(config.onnx), config)
        table = load_table(ranges, model)
        asked = config.calibrate
        feed = feed_of(open_album(asked.images, limit=asked.limit), model, config) if asked else None
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return Calibrated(model, table, feed)


def _pictures(asked: CalibrateConfig | None, config: ModelConfig) -> Path:
    if asked is None:
        raise CalibrationError(
            f"INT8 of {config.onnx.name} needs pictures",
            why="ranges are measured on typical pictures; invented ones would look fine and detect nothing",
            fix="add calibrate: {images: FOLDER} to the model, or --images FOLDER: 100 to 500 typical ones",
        )
    return asked.images
