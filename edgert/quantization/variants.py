"""Versions of a model to examine beside it: reduced as they run here, or as another machine would compute them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgert.backend.ort import Function
from edgert.config import CalibrateConfig, ModelConfig
from edgert.dataset import ImageDataset, feed_of, open_images
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.evaluation import Candidate, EvaluationResult
from edgert.graph import Graph, load
from edgert.quantization.calibrated import Calibrated, calibrate_section, prepared
from edgert.quantization.calibration.ranges import load_table
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.evaluator import CORRECTION_IMAGES, examiner
from edgert.quantization.int8_model import Outcome, recipe_of
from edgert.quantization.lowering.emulate import emulate_dla
from edgert.quantization.noise import sqnr
from edgert.quantization.precision import half_model
from edgert.quantization.quantizer import Array, Quantized, Quantizer
from edgert.quantization.recovery import SCAN_IMAGES, Means, mend
from edgert.quantization.run import Bar, Tell, as_progress, needs_images
from edgert.quantization.scheme.scheme import Scheme, Target

PRECISIONS = ("int8", "fp16")
"""What can run here."""
EMULATED = ("dla", "gpu")
"""Whose INT8 can be simulated."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Another version of a model.

    Attributes:
        name: for tables.
        precision: for reports: ``INT8``, ``FP16``, ``INT8 of a DLA``.
        run: what to examine.
        simulated: whether its time says nothing, as another machine would run it.
        quantized: what an INT8 version was made of; None of others.
    """

    name: str
    precision: str
    run: Candidate
    simulated: bool = False
    quantized: QuantizedVersion | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedVersion:
    """All that a report on an INT8 version is written from.

    Attributes:
        config: the section as it was used.
        quantizer: what made it.
        result: what came out.
        feeds: images to compare layers on.
        source: where its ranges came from, in words.
        seconds: for making it.
    """

    config: ModelConfig
    quantizer: Quantizer
    result: Quantized
    feeds: Sequence[Feeds]
    source: str
    seconds: float

    def outcome(self, evaluation: EvaluationResult | None, labeled: bool) -> Outcome:
        """As quantizing a section would have it; compares layer by layer, in seconds.

        Raises:
            BuildError: ONNX Runtime cannot run the model.
        """
        maker, plan = self.quantizer, self.result.scheme
        recipe = maker.recipe
        if isinstance(maker, _DlaQuantizer):  # its graph holds weights as steps, where no correction can be read off
            recipe = replace(recipe, correct_bias=False, adaround=())
        kept = {skipped.node: skipped.reason for skipped in plan.skipped} | dict.fromkeys(maker.keep, "asked for")
        noise = sqnr(maker.graph, self.result.graph, self.feeds, None, maker.model)
        return Outcome(
            maker.model, maker.table, recipe, self.result, kept, evaluation, labeled, None, None, noise, self.seconds
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which versions to make, and from what.

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

    @property
    def needs_ranges(self) -> bool:
        """Whether anything becomes INT8."""
        return "int8" in self.precisions or bool(self.emulated)


def versions(
    config: ModelConfig,
    wanted: Wanted,
    images: ImageDataset,
    *,
    where: str = "",
    tell: Tell | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> Mapping[str, Version]:
    """Makes all versions that are wanted, name → version. Ranges are measured once for all of them.

    Args:
        config: the model's section. Its ``accuracy`` is not looked at: everything that can becomes INT8.
        images: of the evaluation. Nothing is learnt from them; where a range file was given and no other
            images are named, layers are compared on them, and biases stay as they are.
        where: the section's place in its file, for errors.
        tell, bar, stop: told what goes on and how far it is; ends it when set, within an image's time.

    Raises:
        ConfigError: a precision or a machine that there is not.
        CalibrationError: no images are named, or too few; ranges of another model; stopped.
        EdgertError: the model or the images cannot be used.
    """
    _check(wanted)
    tell = tell or (lambda text: None)
    found: list[Version] = []
    try:
        if wanted.needs_ranges:
            base = replace(_ranges(config, wanted, images, tell, bar, stop), bar=bar, stop=stop)
            makers = [int8_candidate] if "int8" in wanted.precisions else []
            makers += [_SIMULATED[name] for name in dict.fromkeys(wanted.emulated)]
            found += [make(base, tell=tell) for make in makers]
        if "fp16" in wanted.precisions:
            found.append(Version("fp16", "FP16", half_model(load(config.onnx), config).model))
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return {version.name: version for version in found}


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What INT8 versions are made from.

    Attributes:
        config: the section as it is used.
        calibrated: its ranges.
        source: where these came from, in words.
        learns: whether the images are the model's to learn from, and not those it is judged by.
        bar, stop: told how far an examination is; ends whatever is made with CalibrationError.
    """

    config: ModelConfig
    calibrated: Calibrated
    source: str = ""
    learns: bool = True
    bar: Bar | None = None
    stop: threading.Event | None = None


def int8_candidate(base: Base, *, tell: Tell | None = None) -> Version:
    """The model in INT8 for this machine; nothing is kept in higher precision but what the section names."""
    made = _made(Quantizer, base, "ort", tell)
    return Version("int8", "INT8", made.result.model, False, made)


def gpu_candidate(base: Base, *, tell: Tell | None = None) -> Version:
    """The model with Q/DQ nodes for TensorRT on a GPU, every node computed as the ONNX standard says."""
    made = _made(Quantizer, base, "gpu", tell)
    return Version("int8 gpu (simulated)", "INT8, GPU simulated", Function(made.result.model, fused=False), True, made)


def dla_candidate(base: Base, *, tell: Tell | None = None) -> Version:
    """The model as a DLA would compute it, as far as is publicly known; corrections are measured on that too.

    No fusing: ONNX Runtime would multiply scales into weights, and integers would not stay integers.
    """
    made = _made(_DlaQuantizer, base, "dla", tell)
    return Version("int8 dla (simulated)", "INT8, DLA simulated", Function(made.result.model, fused=False), True, made)


_SIMULATED: Mapping[str, Callable[..., Version]] = {"dla": dla_candidate, "gpu": gpu_candidate}


class _DlaQuantizer(Quantizer):
    """Its models are emulations."""

    def lowered(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array] | None = None, *, aligned: bool = False
    ) -> Graph:
        """The graph as a DLA computes it, in float32."""
        return emulate_dla(graph, plan, self.table.amax, per_channel=self.recipe.per_channel, rounded=rounded or {})


def _made(kind: type[Quantizer], base: Base, target: Target, tell: Tell | None) -> QuantizedVersion:
    """As quantizing makes it, but for the units that an accuracy budget would keep."""
    started = time.perf_counter()
    config = base.config.model_copy(update={"accuracy": None})
    step = (lambda text: None) if tell is None else _named(tell, target)
    recipe, feeds = recipe_of(config, target), base.calibrated.feeds(CORRECTION_IMAGES)

    def quantizer(of: Calibrated) -> Quantizer:
        return kind(of.model, of.table, recipe, feeds, step, of.more, base.stop, of.whole_for(recipe))

    def even() -> Quantizer | None:
        other = base.calibrated.evened(recipe, stop=base.stop)
        return None if other is None else quantizer(other)

    judge = examiner(config, base.calibrated, bar=base.bar, stop=base.stop) if base.learns else None
    made = mend(quantizer(base.calibrated), judge, Means(None if target == "ort" else even), step)
    seconds = time.perf_counter() - started
    return QuantizedVersion(config, made.quantizer, made.quantized, feeds[:SCAN_IMAGES], base.source, seconds)


def _named(tell: Tell, target: Target) -> Tell:
    return lambda text: tell(f"int8{'' if target == 'ort' else f' for {target}'}: {text}")


def _ranges(
    config: ModelConfig,
    wanted: Wanted,
    images: ImageDataset,
    tell: Tell,
    bar: Bar | None,
    stop: threading.Event | None,
) -> Base:
    asked = config.calibrate
    limit = asked.limit if asked else CalibrateConfig.model_fields["limit"].default
    given = wanted.images or (str(asked.images) if asked else "")
    if wanted.ranges is None and not given:
        raise needs_images(
            config,
            "--images FOLDER, or --ranges FILE from edgert calibrate, or calibrate: {images: FOLDER} in the model",
            "ranges are measured on typical images, and others than those it is judged by",
        )
    images = open_images(given, limit=limit) if given else images
    if wanted.ranges is None:
        tell(f"calibrating on {given}")
        progress = None if bar is None else as_progress(bar)
        return Base(config, calibrate_section(config, images=images, progress=progress, stop=stop), given)
    model = prepared(load(config.onnx), config)
    table = load_table(wanted.ranges, model)
    used = config if given else _uncorrected(config)
    feed = feed_of(images, model, config)
    return Base(used, Calibrated(model, table, feed), str(wanted.ranges), learns=bool(given))


def _uncorrected(config: ModelConfig) -> ModelConfig:
    """Without what images are needed for beside ranges: those of the evaluation would flatter."""
    plain = config.quantize.model_copy(update={"correct_bias": False, "adaround": ()})
    return config.model_copy(update={"quantize": plain, "calibrate": None})


def _check(wanted: Wanted) -> None:
    for given, known, option in (
        (wanted.precisions, PRECISIONS, "--precision"),
        (wanted.emulated, EMULATED, "--emulate"),
    ):
        for name in given:
            if name not in known:
                raise ConfigError(f"{option} {name}{nearest(name, known)}", fix=f"{option} {' or '.join(known)}")
    for name, value in (("--images", wanted.images), ("--ranges", wanted.ranges)):
        if value and not wanted.needs_ranges:
            raise ConfigError(f"{name} is for INT8, and none is asked for", fix="add --precision int8 or --emulate dla")
