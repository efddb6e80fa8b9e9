"""Versions of a model to evaluate beside it: reduced as they run here, or as another machine would compute them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.config import CalibrateConfig, ModelConfig
from edgert.dataset import ImageDataset, open_images
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.evaluation import Candidate
from edgert.graph import Graph, Model, load
from edgert.quantization.calibrated import Calibrated, calibrate_section, with_ranges
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.conversion import fp16_model
from edgert.quantization.evaluator import evaluator_of
from edgert.quantization.int8_model import QuantizationResult, outcome_of, recipe_of, recovered
from edgert.quantization.lowering.emulate import emulate_dla
from edgert.quantization.quantizer import Quantizer
from edgert.quantization.recovery import SCAN_IMAGES, Recovered
from edgert.quantization.run import ALONE, Run, needs_images
from edgert.quantization.scheme.units import Scheme, Target

PRECISIONS = ("int8", "fp16")
"""Precisions that can run here."""
EMULATED: tuple[Target, ...] = ("dla", "gpu")
"""Targets whose INT8 can be emulated."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Another version of a model.

    Attributes:
        name: for tables.
        precision: for reports: ``INT8``, ``FP16``, ``INT8 of a DLA``.
        run: what to evaluate.
        emulated: whether its time is no measure, as another machine would run it.
        quantized: what an INT8 version was made of; None of others.
    """

    name: str
    precision: str
    run: Candidate
    emulated: bool = False
    quantized: QuantizedVersion | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedVersion:
    """All that a report on an INT8 version is written from.

    Attributes:
        config: the section as it was used.
        made: the model, and how it was made.
        feeds: images to compare layers on.
        source: where its ranges came from, in words.
        seconds: for making it.
    """

    config: ModelConfig
    made: Recovered
    feeds: Sequence[Feeds]
    source: str
    seconds: float

    def outcome(self, labeled: bool) -> QuantizationResult:
        """Return the result as quantizing a section would; compares layer by layer, in seconds.

        Raises:
            BuildError: ONNX Runtime cannot run the model.
        """
        recipe = self.made.quantizer.recipe
        if isinstance(self.made.quantizer, _DlaQuantizer):  # weights are integers there: no correction can be read off
            recipe = replace(recipe, correct_bias=False, adaround=())
        return replace(outcome_of(self.made, recipe, self.feeds, self.seconds), labeled=labeled)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Versions to make, and their calibration data.

    Attributes:
        precisions: some of :data:`PRECISIONS`.
        emulated: some of :data:`EMULATED`.
        images: calibration images instead of the section's; empty for those.
        ranges: a range file to take instead of measuring.
    """

    precisions: tuple[str, ...] = ()
    emulated: tuple[str, ...] = ()
    images: str = ""
    ranges: Path | None = None


def versions(config: ModelConfig, wanted: Wanted, images: ImageDataset, run: Run = ALONE) -> Mapping[str, Version]:
    """Make all versions that are wanted, name → version; ranges are measured once for all of them.

    Args:
        config: the model's section. Its ``accuracy`` is ignored: everything that can becomes INT8.
        wanted: the versions, and the images or ranges to make them from.
        images: the images of the evaluation. Nothing is learnt from them. Where a range file was given and no other
            images are named, layers are compared on them, and biases stay as they are.
        run: the section's place in the file, the log, and the stop event.

    Raises:
        ConfigError: an unknown precision or machine.
        CalibrationError: no images are named, or too few; ranges of another model; stopped.
        EdgertError: the model or the images cannot be used.
    """
    for given, known, option in (
        (wanted.precisions, PRECISIONS, "--precision"),
        (wanted.emulated, EMULATED, "--emulate"),
    ):
        for name in (name for name in given if name not in known):
            raise ConfigError(
                f"{option} cannot be {name!r}{nearest(name, known)}", fix=f"{option} {' or '.join(known)}"
            )
    needs_ranges = "int8" in wanted.precisions or bool(wanted.emulated)
    for option, value in (("--images", wanted.images), ("ranges", wanted.ranges)):
        if value and not needs_ranges:
            raise ConfigError(
                f"{option} is for INT8, and no INT8 version is requested", fix="add --precision int8 or --emulate dla"
            )
    found: list[Version] = []
    try:
        if needs_ranges:
            base = _ranges(config, wanted, images, run)
            targets: list[Target] = ["ort"] if "int8" in wanted.precisions else []
            targets += sorted((one for one in EMULATED if one in wanted.emulated), key=wanted.emulated.index)
            found += [_int8(base, target) for target in targets]
        if "fp16" in wanted.precisions:
            found.append(Version("fp16", "FP16", fp16_model(load(config.onnx), config).model))
    except EdgertError as error:
        raise error.at(run.where)  # noqa: B904 - the same error, with its place
    return {version.name: version for version in found}


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """The base of all INT8 versions.

    Attributes:
        config: the section as it is used.
        calibrated: its ranges.
        run: its log is called with each step, its event stops the work with CalibrationError.
        source: where the ranges came from, in words.
        learns: whether the images may be fitted to: they are not those it is evaluated on.
    """

    config: ModelConfig
    calibrated: Calibrated
    run: Run
    source: str
    learns: bool = True


class _DlaQuantizer(Quantizer):
    """A quantizer whose models are emulations: corrections are measured on a DLA's publicly known arithmetic."""

    def lowered(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array] | None = None, *, aligned: bool = False
    ) -> Graph:
        """Return the graph as a DLA computes it, in float32."""
        return emulate_dla(graph, plan, self.table.amax, per_channel=self.recipe.per_channel, rounded=rounded or {})


def _int8(base: _Base, target: Target) -> Version:
    """Return the version as quantizing makes it, without keeping units for an accuracy budget."""
    started = time.perf_counter()
    config = base.config.model_copy(update={"accuracy": None})
    title = "int8" if target == "ort" else f"int8 for {target}"
    run = replace(base.run, where="", directory=None, log=lambda text: base.run.log(f"{title}: {text}"))
    evaluator = evaluator_of(config, base.calibrated, run) if base.learns else None
    kind = _DlaQuantizer if target == "dla" else Quantizer
    made = recovered(base.calibrated, recipe_of(config, target), evaluator, run, smooth=True, kind=kind)
    seconds = time.perf_counter() - started
    parts = QuantizedVersion(config, made, base.calibrated.feeds(SCAN_IMAGES), base.source, seconds)
    if target == "ort":
        return Version("int8", "INT8", made.quantized.model, False, parts)
    emulated = _Emulation(made.quantized.model)
    return Version(f"int8 {target} (emulated)", f"INT8, {target.upper()} emulated", emulated, True, parts)


class _Emulation(Function):
    """A model that computes as another machine does; can be pickled.

    It is not fused: ONNX Runtime would multiply scales into weights, and integers would not stay integers.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model, fused=False)
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        return _Emulation, (self._model,)


def _ranges(config: ModelConfig, wanted: Wanted, images: ImageDataset, run: Run) -> _Base:
    requested = config.calibrate
    limit = requested.limit if requested else CalibrateConfig.model_fields["limit"].default
    given = wanted.images or (str(requested.images) if requested else "")
    if wanted.ranges is None and not given:
        raise needs_images(
            config,
            "--images FOLDER, or calibrate: {images: FOLDER} in the model",
            "ranges are measured on typical images, and others than those it is evaluated on",
        )
    images = open_images(given, limit=limit) if given else images
    if wanted.ranges is None:
        run.log(f"calibrating on {given}")
        return _Base(config, calibrate_section(config, images=images, run=run), run, given)
    calibrated = with_ranges(config, wanted.ranges, images=images)
    if not given:  # without what images are needed for beside ranges: the evaluation's own would flatter
        plain = config.quantize.model_copy(update={"correct_bias": False, "adaround": ()})
        config = config.model_copy(update={"quantize": plain, "calibrate": None})
    return _Base(config, calibrated, run, str(wanted.ranges), learns=bool(given))
