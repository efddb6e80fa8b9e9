"""Making a model in another precision: INT8 or FP16, or the fastest of those that are accurate enough."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgert.backend import Store
from edgert.backend.base import cache_content
from edgert.board.host import cpu_name
from edgert.config import ModelConfig
from edgert.dataset import ImageDataset, LabeledDataset, open_images
from edgert.engine import default_profile
from edgert.errors import EdgertError, ModelError
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, clean, from_bytes, load, read, to_bytes, with_shapes, write
from edgert.graph.batch_size import has_open_batch
from edgert.graph.operators import QDQ, is_integer
from edgert.quantization.batched import PAIR, opened, takes_several
from edgert.quantization.calibrated import Calibrated, calibrate_section
from edgert.quantization.describe import summary
from edgert.quantization.fp16.to_fp16 import Kept, to_fp16
from edgert.quantization.int8_model import QuantizationResult, quantize_section, rounded
from edgert.quantization.quantizer import matching
from edgert.quantization.run import ALONE, Job, Run, Target, needs_images

# A model of a pipeline file in float16.


@dataclass(frozen=True, slots=True, eq=False)
class Fp16Model:
    """A float16 model and the nodes that stayed float32."""

    model: Model
    kept: tuple[Kept, ...]


def fp16_model(model: Model, config: ModelConfig, *, open_batch: bool = False) -> Fp16Model:
    """Convert a model to float16.

    Nodes of ``quantize: {keep: …}`` stay float32, and those that float16 would spoil.

    Args:
        model: the float model.
        config: the model's section.
        open_batch: a batch size that the model leaves open stays open; else it is that of the section, or 1.

    Raises:
        ModelError: dimensions stay open.
        CalibrationError: ``keep`` matches no node.
    """
    if len(config.profiles) > 1:
        raise ModelError(
            f"a model with {len(config.profiles)} profiles is converted at one size",
            why="which nodes overflow is decided from shapes",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    ready, _ = clean(with_shapes(model, shapes, open_batch=open_batch) if shapes else model)
    graph = read(ready)
    keep = matching(config.quantize.keep, [node.name for node in graph.nodes], "quantize.keep")
    fp16 = to_fp16(graph, keep=keep)
    return Fp16Model(write(fp16.graph, ready), fp16.kept)


def _int8(model: Model, config: ModelConfig, job: Job) -> Model:
    calibrated = _calibrated(config, job)
    # an error here comes before accuracy is measured for minutes
    is_open = _opened_float(model, calibrated, job) is not None
    made = _quantized(config, calibrated, job, strict=True).model
    return _opened(made, calibrated) if is_open else made


def _auto(model: Model, config: ModelConfig, job: Job) -> Model:
    """Return the fastest version that is accurate enough; accuracy, which takes minutes, is measured only if needed."""
    from edgert.quantization.throughput import fastest

    calibrated = _calibrated(config, job)
    try:
        opened = _opened_float(model, calibrated, job)
    except ModelError as error:
        if not takes_several(model, calibrated.feeds(PAIR)):
            raise
        taken = "fp32" if job.target == "ort" else "fp16"
        job.run.log(f"precision: auto takes {taken}: INT8 would take one image at a time: {error.why}")
        return model if job.target == "ort" else _fp16(model, config, job)
    plain = model if opened is None or has_open_batch(model) else opened
    rows = 1 if opened is None else job.rows

    def ready(made: Model) -> Model:
        return made if opened is None else _opened(made, calibrated)

    if job.target != "ort":
        outcome = _quantized(config, calibrated, job, strict=False)
        return ready(outcome.model) if outcome.is_sound else _fp16(model, config, job)
    rough = fastest({"fp32": plain, "int8": ready(rounded(config, calibrated))}, config, batch=rows)
    if rough.name == "fp32":
        job.run.log(f"precision: auto takes fp32: {rough.times}")
        return plain
    outcome = _quantized(config, calibrated, job, strict=False)
    if not outcome.is_sound:
        job.run.log("precision: auto takes fp32: INT8 would be faster and is not accurate enough")
        return plain
    choice = fastest({"fp32": plain, "int8": ready(outcome.model)}, config, batch=rows)
    job.run.log(f"precision: auto takes {choice.name}: {choice.times}")
    return choice.model


def _opened_float(model: Model, calibrated: Calibrated, job: Job) -> Model | None:
    """Return the float model to quantize, with its batch open; None where one image is run at a time.

    Crops are run one by one where the file, or the model made of it, takes no more.

    Raises:
        ModelError: it has to run in batches, and cannot.
    """
    if job.rows == 1 or not (job.batched or has_open_batch(model)):
        return None
    try:
        return _opened(calibrated.model, calibrated, file=model)
    except ModelError as error:
        if job.batched:
            raise error.at(job.run.where)  # noqa: B904 - the same error, with its place
        job.run.log(f"INT8 takes crops one by one: {error.why}")
        return None


def _opened(made: Model, calibrated: Calibrated, *, file: Model | None = None) -> Model:
    return opened(made, calibrated.feeds(PAIR), file=file)


def _calibrated(config: ModelConfig, job: Job) -> Calibrated:
    if config.calibrate is not None:
        job.run.log(f"calibrating {config.onnx.name} (once: it is cached)")
    return calibrate_section(config, target=job.target, run=job.run)


def _quantized(config: ModelConfig, calibrated: Calibrated, job: Job, *, strict: bool) -> QuantizationResult:
    outcome = quantize_section(config, calibrated, target=job.target, run=job.run, strict=strict)
    for text in summary(outcome):
        job.run.log(text)
    return outcome


def _fp16(model: Model, config: ModelConfig, job: Job) -> Model:

    made = fp16_model(model, config, open_batch=job.rows > 1)
    if made.kept:
        job.run.log(f"fp16: {len(made.kept)} nodes stay fp32, the first {made.kept[0].node}: {made.kept[0].reason}")
    return made.model


MAKERS: Mapping[str, Callable[[Model, ModelConfig, Job], Model]] = {"int8": _int8, "auto": _auto, "fp16": _fp16}


# The model that a pipeline runs: as the file is, or in the precision its section asks for, made once and cached.

_RECIPE = 3
"""Part of the cache key; increase it when models are made in another way."""


def in_precision(
    config: ModelConfig,
    run: Run = ALONE,
    *,
    store: Store | None = None,
    target: Target = "ort",
    rows: int = 1,
    batched: bool = False,
) -> Model:
    """Load a section's model and convert it to the precision that the section asks for.

    ``int8`` calibrates and quantizes once. After that the model comes from the cache until the file, its images, its
    labels or its settings change. ``auto`` without ``calibrate:`` runs the file as it is. With it, ``auto`` takes the
    faster one here of fp32 and int8 within the accuracy budget. Where int8 is not surely faster or not accurate enough,
    it takes fp32, or fp16 for TensorRT. A file that is quantized already is run as it is.

    Args:
        config: the model's section.
        run: the section's place in the file, and the log.
        store: the cache; the user's by default.
        target: who runs it: ``gpu`` makes INT8 as TensorRT takes it, and ``auto`` is not timed, as nothing runs yet.
        rows: frames or crops that are run at a time. Where there are several, a batch size that the file leaves open
            stays open; ``auto`` times runs of this many.
        batched: INT8 must take several, and its batch is opened even where the file fixes it to one
            (:mod:`~edgert.quantization.batched`).

    Raises:
        ModelError: it has to run in batches, and a node accepts one image only.
        CalibrationError: no images to calibrate on, or too few.
        BuildError: the accuracy budget cannot be met.
        EdgertError: the model, the images or the labels cannot be used.
    """
    job = Job(run, target, rows, batched)
    model = load(config.onnx)
    if not config.is_converted or is_quantized(model):
        return model
    try:
        key = _key(model, config, job)
    except EdgertError as error:
        raise error.at(run.where)  # noqa: B904 - the same error, with its place
    store = store or FileStore(cache_folder() / "precision")
    content = store.get(key)
    if content is None:
        content = to_bytes(MAKERS[config.precision](model, config, job))
        cache_content(store, key, content)
    return from_bytes(content, model.path)  # under the name of the file it was made of


def is_quantized(model: Model) -> bool:
    """Return whether the model computes in integers already, by Q/DQ nodes or integer operators."""
    return any(node.op in QDQ or is_integer(node.op) for node in read(model).nodes)


def check_precision(config: ModelConfig, where: str = "") -> None:
    """Check that the images and labels that a section names exist, without using them.

    Args:
        config: the model's section.
        where: key path of the section, like ``models.parts``.

    Raises:
        CalibrationError: int8 without images.
        EdgertError: there are none where the section points.
    """
    try:
        if config.precision == "int8" or config.calibrate is not None:
            _images(config)
    except EdgertError as error:
        raise error.at(f"{where}.calibrate")  # noqa: B904 - the same error, with its place
    try:
        _dataset(config)
    except EdgertError as error:
        raise error.at(f"{where}.accuracy")  # noqa: B904 - the same error, with its place


def _key(model: Model, config: ModelConfig, job: Job) -> str:
    """Return a key of all that a made model depends on."""
    speed = {"threads", "replicas", "placement", "tuning"}
    settings: dict[str, Any] = config.model_dump(mode="json", exclude={"onnx", *speed})
    facts = [_RECIPE, model.digest, settings, platform.machine(), *_data(config)]
    if job.target != "ort":
        facts.append(job.target)
    if job.rows > 1:
        facts.append("batched" if job.batched and config.precision != "fp16" else "open batch")
    if config.precision == "auto":
        facts.append([cpu_name(), job.rows] if job.rows > 1 else cpu_name())
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _data(config: ModelConfig) -> list[str]:
    """Return digests of the images and labels. Raises CalibrationError: int8 has no images."""
    if config.precision not in ("int8", "auto"):
        return []
    found = [_images(config).digest()]
    if (dataset := _dataset(config)) is not None:
        found.append(dataset.images.digest())
        found.append(hashlib.sha256(dataset.path.read_bytes()).hexdigest() if dataset.path.is_file() else "")
    return found


def _images(config: ModelConfig) -> ImageDataset:
    """Return the images that ranges are measured on."""
    if config.calibrate is None:
        raise needs_images(config)
    return open_images(config.calibrate.images, limit=config.calibrate.limit)


def _dataset(config: ModelConfig) -> LabeledDataset | None:
    """Return the dataset that accuracy is measured on, where the section names one."""
    if config.accuracy is None:
        return None
    from edgert.dataset import open_dataset
    from edgert.stages.decode.kinds import labels_of

    return open_dataset(config.accuracy.dataset, config.task, labels_of(config))
