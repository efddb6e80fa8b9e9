"""Versions of a model to evaluate beside it, in a precision that runs here or emulating another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.backend.ort import Function
from edgert.config import CalibrateConfig, ModelConfig
from edgert.dataset import ImageDataset, open_images
from edgert.errors import ConfigError, located_at, nearest
from edgert.evaluation import Candidate
from edgert.graph import Model, load
from edgert.quantization import conversion, int8_model, recovery
from edgert.quantization.calibrated import CalibratedModel, calibrate_section, with_ranges
from edgert.quantization.calibration.walk import Feeds
from edgert.quantization.evaluator import evaluator_of
from edgert.quantization.run import DEFAULT_RUN, Run, needs_images
from edgert.quantization.scheme.units import Target

PRECISIONS = ("int8", "fp16")
"""Precisions of versions that run here."""
EMULATED: tuple[Target, ...] = ("dla", "gpu")
"""Targets whose INT8 can be emulated."""


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Another version of a model.

    Attributes:
        precision: name in reports: ``INT8``, ``FP16``, ``INT8, DLA emulated``.
        emulated: whether it emulates another machine, so that its time means nothing.
    """

    name: str
    precision: str
    run: Candidate
    emulated: bool = False
    quantized: QuantizedVersion | None = None


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedVersion:
    """Details of an INT8 version for its report. Layers are compared on ``feeds``."""

    config: ModelConfig
    made: recovery.Recovered
    feeds: Sequence[Feeds]
    source: str

    def outcome(self, labeled: bool) -> int8_model.QuantizationResult:
        """Return the result in the form that quantizing a section has; comparing layers takes seconds.

        Raises BuildError: ONNX Runtime cannot run the model.
        """
        return replace(int8_model.quantization_result(self.made, self.feeds), labeled=labeled)


def make_versions(
    config: ModelConfig,
    images: ImageDataset,
    run: Run = DEFAULT_RUN,
    *,
    precisions: Sequence[str] = (),
    emulated: Sequence[str] = (),
    calibrate: str = "",
    ranges: Path | None = None,
) -> Mapping[str, Version]:
    """Make the requested versions, by name; ranges are measured once for all of them.

    The section's ``accuracy`` is ignored: all units that can be are INT8. Nothing is fitted to the images of the
    evaluation. With a range file and no other images, layers are compared on them, and biases are not corrected. Raises
    ConfigError: a precision or target is unknown. Raises CalibrationError: no images are named, there are too few,
    ranges belong to another model, or ``run.stop`` was set. Raises EdgertError: the model or the images cannot be used.
    """
    for given, known, option in (
        (precisions, PRECISIONS, "--precision"),
        (emulated, EMULATED, "--emulate"),
    ):
        for name in (name for name in given if name not in known):
            raise ConfigError(
                f"{option} cannot be {name!r}{nearest(name, known)}", fix=f"{option} {' or '.join(known)}"
            )
    needs_ranges = "int8" in precisions or bool(emulated)
    for option, value in (("--images", calibrate), ("ranges", ranges)):
        if value and not needs_ranges:
            raise ConfigError(
                f"{option} is for INT8, and no INT8 version is requested", fix="add --precision int8 or --emulate dla"
            )
    found: list[Version] = []
    with located_at(run.where):
        if needs_ranges:
            base = _calibrate(config, calibrate, ranges, images, run)
            targets: list[Target] = ["ort"] if "int8" in precisions else []
            targets += sorted((target for target in EMULATED if target in emulated), key=emulated.index)
            found += [_make_int8(base, target) for target in targets]
        if "fp16" in precisions:
            found.append(Version("fp16", "FP16", conversion.fp16_model(load(config.onnx), config)[0]))
    return {version.name: version for version in found}


@dataclass(frozen=True, slots=True, eq=False)
class _Int8Base:
    """Common input of all INT8 versions.

    ``learns``: models may be fitted to the images, which are then not those of the evaluation.
    """

    config: ModelConfig
    calibrated: CalibratedModel
    run: Run
    source: str
    learns: bool = True


def _make_int8(base: _Int8Base, target: Target) -> Version:
    config = base.config.model_copy(update={"accuracy": None})
    title = "int8" if target == "ort" else f"int8 for {target}"
    run = replace(base.run, where="", directory=None, log=lambda text: base.run.log(f"{title}: {text}"))
    evaluator = evaluator_of(config, base.calibrated, run) if base.learns else None
    recipe = replace(int8_model.section_recipe(config, target), emulates_dla=target == "dla")
    made = int8_model.quantize_and_recover(base.calibrated, recipe, evaluator, run, smooth=True)
    parts = QuantizedVersion(config, made, base.calibrated.feeds(recovery.SCAN_IMAGES), base.source)
    if target == "ort":
        return Version("int8", "INT8", made.quantized.model, False, parts)
    emulated = _Emulation(made.quantized.model)
    return Version(f"int8 {target} (emulated)", f"INT8, {target.upper()} emulated", emulated, True, parts)


class _Emulation(Function):
    """Function of a model that emulates another machine; it can be pickled.

    It is not fused, since ONNX Runtime would multiply scales into weights, and integers would not stay integers.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model, fused=False)
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        return _Emulation, (self._model,)


def _calibrate(config: ModelConfig, calibrate: str, ranges: Path | None, images: ImageDataset, run: Run) -> _Int8Base:
    requested = config.calibrate
    limit = requested.limit if requested else CalibrateConfig.model_fields["limit"].default
    given = calibrate or (str(requested.images) if requested else "")
    if ranges is None and not given:
        raise needs_images(
            config,
            "--images FOLDER, or calibrate: {images: FOLDER} in the model",
            "ranges are measured on typical images other than those of the evaluation",
        )
    images = open_images(given, limit=limit) if given else images
    if ranges is None:
        run.log(f"calibrating on {given}")
        return _Int8Base(config, calibrate_section(config, images=images, run=run), run, given)
    calibrated = with_ranges(config, ranges, images=images)
    if not given:  # corrections fitted to the images of the evaluation would flatter
        plain = config.quantize.model_copy(update={"correct_bias": False, "adaround": ()})
        config = config.model_copy(update={"quantize": plain, "calibrate": None})
    return _Int8Base(config, calibrated, run, str(ranges), learns=bool(given))
