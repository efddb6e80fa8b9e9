"""The model that a pipeline runs: as the file is, or in the precision its section asks for, made once and kept."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgert.album import Album, open_album
from edgert.artifact import FileStore, cache_folder
from edgert.backend import Store
from edgert.board.cpu import cpu_name
from edgert.config import ModelConfig
from edgert.errors import CalibrationError, EdgertError
from edgert.graph.load import load
from edgert.graph.model import Model, to_bytes
from edgert.precision.listener import Bar, Tell
from edgert.quantize.prepare import is_quantised

if TYPE_CHECKING:
    from edgert.accuracy import Dataset
    from edgert.precision.calibration import Calibrated
    from edgert.precision.outcome import Outcome

log = logging.getLogger("edgert.precision")
Target = Literal["ort", "gpu"]
"""Who runs the model that is made: ONNX Runtime, or TensorRT on a GPU."""

_RECIPE = 2
"""Part of the cache key: raise it when models are made in another way."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a model's section stands, who is told what happens, and who is to run what is made."""

    where: str
    directory: Path | None
    tell: Tell
    bar: Bar | None
    target: Target
    open_batch: bool


def in_precision(
    config: ModelConfig,
    *,
    where: str = "",
    directory: Path | None = None,
    tell: Tell | None = None,
    bar: Bar | None = None,
    store: Store | None = None,
    target: Target = "ort",
    open_batch: bool = False,
) -> Model:
    """Loads a section's model and makes it the precision that the section asks for.

    ``int8`` calibrates and quantises once; after that the model comes from the cache until the file, its pictures,
    its labels or its settings change. ``auto`` with ``calibrate:`` takes what runs fastest here of fp32 and int8 within
    the accuracy budget, and fp32 where int8 is not surely faster or not accurate enough; without, the file's own. A
    file that is quantised already is run as it is.

    Args:
        where, directory: the section's place, and the folder of its file.
        tell, bar: told what goes on, and how far it is.
        store: the cache; the user's by default.
        target: who runs it: ``gpu`` makes INT8 as TensorRT takes it, and ``auto`` is not timed, as nothing runs yet.
        open_batch: FP16 keeps a batch size open that the file leaves open; INT8 is of one size.

    Raises:
        CalibrationError: no pictures to calibrate on, or too few.
        BuildError: the accuracy budget cannot be met.
        EdgertError: the model, the pictures or the labels cannot be used.
    """
    place = _Place(where, directory, tell or log.info, bar, target, open_batch and config.precision == "fp16")
    model = load(config.onnx)
    if not config.is_converted or is_quantised(model):
        return model
    try:
        key = _key(model, config, place)
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    store = store or FileStore(cache_folder() / "precision")
    kept = store.get(key)
    if kept is None:
        made = _MAKERS[config.precision](model, config, place)
        with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
            content = Path(folder) / "model.onnx"
            content.write_bytes(to_bytes(made))
            kept = store.put(key, content)
    return _named(load(kept), model)


def check_precision(config: ModelConfig, where: str = "") -> None:
    """Whether the pictures and labels that a section names are there, short of using them.

    Args:
        where: key path of the section, like ``models.parts``.

    Raises:
        CalibrationError: int8 without pictures.
        EdgertError: there are none where the section says.
    """
    try:
        if config.precision == "int8" or config.calibrate is not None:
            _pictures(config)
    except EdgertError as error:
        raise error.at(f"{where}.calibrate")  # noqa: B904 - the same error, with its place
    try:
        _dataset(config)
    except EdgertError as error:
        raise error.at(f"{where}.accuracy")  # noqa: B904 - the same error, with its place


def _int8(model: Model, config: ModelConfig, place: _Place) -> Model:
    outcome = _quantised(config, _calibrated(config, place), place, strict=True)
    return outcome.model


def _auto(model: Model, config: ModelConfig, place: _Place) -> Model:
    """What runs fastest and is accurate enough. Accuracy, which takes minutes, is not looked into for nothing."""
    from edgert.precision.quantization import rounded
    from edgert.precision.speed import fastest

    calibrated = _calibrated(config, place)
    if place.target != "ort":
        outcome = _quantised(config, calibrated, place, strict=False)
        return outcome.model if outcome.is_sound else model
    rough = fastest({"fp32": model, "int8": rounded(config, calibrated)}, config)
    if rough.name == "fp32":
        place.tell(f"precision: auto takes fp32: {rough.told}")
        return model
    outcome = _quantised(config, calibrated, place, strict=False)
    if not outcome.is_sound:
        place.tell("precision: auto takes fp32: INT8 would be faster and is not accurate enough")
        return model
    choice = fastest({"fp32": model, "int8": outcome.model}, config)
    place.tell(f"precision: auto takes {choice.name}: {choice.told}")
    return choice.model


def _calibrated(config: ModelConfig, place: _Place) -> Calibrated:
    from edgert.precision.calibration import calibrate_section

    if config.calibrate is not None:
        place.tell(f"calibrating {config.onnx.name} (once: it is kept)")
    progress = None if place.bar is None else _as_bar(place.bar)
    return calibrate_section(config, target=place.target, where=place.where, progress=progress)


def _quantised(config: ModelConfig, calibrated: Calibrated, place: _Place, *, strict: bool) -> Outcome:
    from edgert.precision.quantization import quantize_section

    outcome = quantize_section(
        config,
        calibrated,
        target=place.target,
        where=place.where,
        directory=place.directory,
        tell=place.tell,
        bar=place.bar,
        strict=strict,
    )
    for text in outcome.summary():
        place.tell(text)
    return outcome


def _fp16(model: Model, config: ModelConfig, place: _Place) -> Model:
    from edgert.precision.half import half_model

    made = half_model(model, config, open_batch=place.open_batch)
    if made.kept:
        place.tell(f"fp16: {len(made.kept)} nodes stay fp32, the first {made.kept[0].node}: {made.kept[0].reason}")
    return made.model


_MAKERS: Mapping[str, Callable[[Model, ModelConfig, _Place], Model]] = {"int8": _int8, "auto": _auto, "fp16": _fp16}


def _named(made: Model, model: Model) -> Model:
    """What came out of the cache, under the name of the file it was made of."""
    return Model(made.proto, model.path, made.digest)


def _as_bar(bar: Bar) -> Callable[[int, int | None, str], None]:
    def progress(done: int, total: int | None, name: str) -> None:
        bar("calibrating", done, total or done)

    return progress


def _key(model: Model, config: ModelConfig, place: _Place) -> str:
    """What a made model depends on."""
    speed = {"threads", "replicas", "placement", "tuning"}
    settings: dict[str, Any] = config.model_dump(mode="json", exclude={"onnx", *speed})
    facts = [_RECIPE, model.digest, settings, platform.machine(), *_data(config)]
    if place.target != "ort":
        facts.append(place.target)
    if place.open_batch:
        facts.append("open batch")
    if config.precision == "auto":
        facts.append(cpu_name())
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _data(config: ModelConfig) -> list[str]:
    """Digests of the pictures and labels. Raises CalibrationError where int8 has no pictures."""
    if config.precision not in ("int8", "auto"):
        return []
    found = [_pictures(config).digest()]
    if (dataset := _dataset(config)) is not None:
        found.append(dataset.album.digest())
        found.append(hashlib.sha256(dataset.path.read_bytes()).hexdigest() if dataset.path.is_file() else "")
    return found


def _pictures(config: ModelConfig) -> Album:
    """What ranges are measured on."""
    if config.calibrate is None:
        raise CalibrationError(
            f"precision: int8 of {config.onnx.name} needs pictures",
            why="ranges are measured on typical pictures; invented ones would look fine and detect nothing",
            fix="add calibrate: {images: FOLDER}, with 100 to 500 typical pictures",
        )
    return open_album(config.calibrate.images, limit=config.calibrate.limit)


def _dataset(config: ModelConfig) -> Dataset | None:
    """What accuracy is judged on, where the section says it."""
    if config.accuracy is None:
        return None
    from edgert.accuracy import labels_of, open_dataset

    return open_dataset(config.accuracy.dataset, config.task, labels_of(config))
