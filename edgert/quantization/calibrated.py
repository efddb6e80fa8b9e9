"""Preparation of a float model for quantization, and measurement of its ranges on images."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.config import ModelConfig
from edgert.dataset import ImageDataset, ImageFeed, feed_of, open_images
from edgert.engine import default_profile
from edgert.errors import CalibrationError, ModelError, located_at
from edgert.graph import Model, Shapes, clean, inputs, load, operators, raise_opset, read, with_shapes, write
from edgert.quantization.calibration import value_histogram, walk
from edgert.quantization.calibration.range_calibrator import calibrate
from edgert.quantization.calibration.ranges import RangeTable, load_table
from edgert.quantization.equalization import smooth_activations
from edgert.quantization.quantizer import Recipe, equalize_model, match_names
from edgert.quantization.run import DEFAULT_RUN, Run, needs_images
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import Scheme, Target, is_weighted, tensors_to_calibrate

log = logging.getLogger("edgert.quantize")

OPSET = 17
"""Newest opset that ONNX Runtime and TensorRT have both read since 2022; models of a newer one keep it. Per-channel
Q/DQ needs 13 (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html)."""

_16_BITS = frozenset({"float16", "bfloat16"})


def prepare(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """Return the model ready for quantization: static shapes, opset 17 or newer, constants folded, nodes named.

    Batch normalization is folded into weights. The model computes the same up to the rounding of folded weights, and
    equal models give equal digests. Remaining tensors keep their names. Bodies of If, Loop and Scan, and nodes of other
    domains, stay in float, and the log names them. ``shapes`` have all dimensions of inputs; a first one that stays
    open becomes 1. Raises ModelError: dimensions stay open, or the shapes do not fit. The model is quantized or
    float16, or has no float32 input or weights. An operator has no equivalent in opset 17.
    """
    _check_types(model)
    ready, _ = clean(_close_batch(with_shapes(model, shapes or {})))
    graph = read(ready)
    if graph.opset < OPSET:
        ready, _ = clean(raise_opset(ready, OPSET))
        graph = read(ready)
    if not any(is_weighted(graph, node) for node in graph.nodes):
        raise ModelError(
            f"model {str(model.path)!r} has nothing to quantize",
            why=f"no {', '.join(sorted(operators.WEIGHTED))} in it has stored float32 weights",
            fix="run it in float: precision: fp32",
        )
    for node in graph.nodes:
        if node.domain:
            log.info("%s: node %r (%s.%s) stays in float", model.path, node.name, node.domain, node.op)
        elif operators.about(node.op).kind == "control":
            log.info("%s: the graph inside node %r (%s) stays in float", model.path, node.name, node.op)
    return ready


def _check_types(model: Model) -> None:
    graph, name = read(model), f"model {str(model.path)!r}"
    integer = next((node for node in graph.nodes if node.op in operators.QDQ or operators.is_integer(node.op)), None)
    narrow = [name for name, array in graph.constants.items() if array.dtype.name in _16_BITS]
    narrow += [spec.name for spec in graph.inputs if spec.dtype in _16_BITS]
    if integer is not None:
        what, why = "is already quantized", f"node {integer.name!r} is {integer.op}"
        fix = "give the float model it was made from; or run this one as it is: precision: fp32"
        if not any(operators.is_integer(node.op) for node in graph.nodes):
            fix += "; or take the scales of its Q/DQ nodes to a DLA: edgert quantize --target cache, or --target dla"
    elif narrow:
        what = "is a float16 model"
        why = f"tensor {narrow[0]!r} is stored or fed in 16 bits; ranges are measured in float32"
        fix = "export it in float32; edgert makes fp16 and int8 from that"
    elif not any(spec.dtype == "float32" for spec in graph.inputs):
        what, why = "takes no float32 input", f"its inputs are {', '.join(map(str, graph.inputs)) or 'none'}"
        fix = "export it with a float32 input, without the conversion from bytes"
    else:
        return
    raise ModelError(f"{name} {what}", why=why, where=str(model.path), fix=fix)


def _close_batch(model: Model) -> Model:
    """Return the model with open batch dimensions set to 1; raise ModelError when other dimensions are open."""
    ones = {}
    for spec in inputs(model):
        known = [dim for dim in spec.shape[1:] if isinstance(dim, int)]
        if spec.ranked and spec.shape and not isinstance(spec.shape[0], int) and len(known) == len(spec.shape) - 1:
            ones[spec.name] = (1, *known)
    fixed = with_shapes(model, ones) if ones else model
    for spec in inputs(fixed):
        if not spec.is_static:
            raise ModelError(
                f"input {spec.name!r} of model {str(model.path)!r} has open dimensions: {spec}",
                why="ranges belong to one size of the network",
                where=str(model.path),
                fix="give its size (--shape, or input: {size: WIDTHxHEIGHT}, or profiles in the pipeline file)",
            )
    return fixed


SMOOTHING_IMAGES = 32
"""Number of images on which the ranges of channels are measured."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedModel:
    """A float model with ranges.

    Attributes:
        model: prepared model, equalized where the section asks for it.
        feed: images on which they were measured; None where they came from a file without images.
        whole: scheme with no units kept, which decided what to measure; None where all tensors were measured, or the
            ranges came from a file.
    """

    model: Model
    table: RangeTable
    feed: ImageFeed | None
    whole: Scheme | None = None

    def feeds(self, count: int, first: int = 0) -> Sequence[walk.Feeds]:
        """Return up to ``count`` images from number ``first`` on, as the model's inputs; empty without images."""
        if self.feed is None:
            return []
        return [self.feed.feeds(index) for index in range(first, min(first + count, len(self.feed)))]

    def measure_missing(self) -> Mapping[str, value_histogram.Histogram]:
        """Return histograms of the tensors missing from the table, measured on the same images.

        Raises CalibrationError: there are no images.
        """
        missing = sorted(set(tensors_to_calibrate(read(self.model))) - self.table.histograms.keys())
        if self.feed is None:
            raise CalibrationError(
                f"{len(missing)} tensors have no range, {missing[0]!r} among them",
                why="the ranges were measured for other settings, and there are no images to measure the rest on",
                fix="calibrate again, or name the images",
            )
        return calibrate(self.model, self.feed, tensors=missing, early_stop=self._stopped_early).histograms

    def smooth(self, recipe: Recipe, *, stop: threading.Event | None = None) -> CalibratedModel | None:
        """Return the model with smoothed activations and new ranges; see :mod:`~edgert.quantization.equalization`.

        None where nothing can be smoothed, or there are no images. Raises CalibrationError: the new ranges cannot be
        measured, or ``stop`` was set. Raises BuildError: ONNX Runtime cannot run the model.
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
            tensors=whole.needed,
            early_stop=self._stopped_early,
            stop=stop,
        )
        return CalibratedModel(model, table, self.feed, whole)

    @property
    def _stopped_early(self) -> bool:
        return self.table.available is not None and self.table.images < self.table.available


def prepare_section_model(model: Model, config: ModelConfig) -> Model:
    """Return the model on which a section's ranges are measured.

    Raises ModelError: the model cannot be quantized: it is already quantized, its size is open, or it has no weights.
    Raises CalibrationError: the section has several profiles.
    """
    if len(config.profiles) > 1:
        raise CalibrationError(
            f"a model with {len(config.profiles)} profiles is quantized at one size",
            why="ranges belong to the size they were measured at",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    ready = prepare(model, calibration_shapes(model, config))
    return equalize_model(ready) if config.quantize.equalize else ready


def calibration_shapes(model: Model, config: ModelConfig) -> Shapes:
    """Return the input shapes for calibration: those of the first profile, with a batch of 1 where it is open.

    Raises ModelError: dimensions other than the batch stay open.
    """
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    open_ones = {spec.name for spec in inputs(model) if spec.shape and not isinstance(spec.shape[0], int)}
    return {name: (1, *sizes[1:]) if name in open_ones else sizes for name, sizes in shapes.items()}


def calibrate_section(
    config: ModelConfig,
    *,
    target: Target | None = None,
    run: Run = DEFAULT_RUN,
    images: ImageDataset | None = None,
    workers: int = 1,
    dask: str = "",
    state: Path | None = None,
) -> CalibratedModel:
    """Measure the ranges of a model. Blocks until done.

    Tensors that a ``target`` never rounds are not counted, which saves a third to two thirds of the values of common
    networks; None measures all. For ``workers``, ``dask`` and ``state`` see
    :func:`~edgert.quantization.calibration.range_calibrator.calibrate`. Raises CalibrationError: no images are named,
    there are too few, or they give values that cannot be used. Raises EdgertError: the model or the images cannot be
    read.
    """
    with located_at(run.where):
        requested = config.calibrate
        if images is None:
            if requested is None:
                raise needs_images(
                    config,
                    "add calibrate: {images: FOLDER} to the model, or --images FOLDER: 100 to 500 typical ones",
                )
            images = open_images(requested.images, limit=requested.limit)
        model = prepare_section_model(load(config.onnx), config)
        feed = feed_of(images, model, config)
        method = requested.method if requested and requested.method != "auto" else "mse"
        whole, tensors = None, None
        if target is not None:
            whole = scheme(read(model), target)
            keep = match_names(config.quantize.keep, [unit.name for unit in whole.units], "keep")
            tensors = scheme(read(model), target, keep, whole=whole).needed
        table = calibrate(
            model,
            feed,
            method=method,
            tensors=tensors,
            workers=workers,
            dask=dask,
            early_stop=requested is None or requested.early_stop,
            state=state,
            bar=run.bar,
            stop=run.stop,
        )
    return CalibratedModel(model, table, feed, whole)


def with_ranges(
    config: ModelConfig, ranges: RangeTable | str | Path, *, images: ImageDataset | None = None, where: str = ""
) -> CalibratedModel:
    """Return a calibrated model with ranges measured before.

    Images, by default those of the section, are used to correct biases and to compare. Raises CalibrationError: the
    file is damaged, or belongs to another model. Raises EdgertError: the model or the images cannot be read.
    """
    with located_at(where):
        model = prepare_section_model(load(config.onnx), config)
        table = ranges if isinstance(ranges, RangeTable) else load_table(ranges, model)
        if images is None and config.calibrate is not None:
            images = open_images(config.calibrate.images, limit=config.calibrate.limit)
        feed = None if images is None else feed_of(images, model, config)
    return CalibratedModel(model, table, feed)
