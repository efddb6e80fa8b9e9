"""The model that a pipeline runs: as the file is, or in the precision its section asks for, made once and cached."""

import hashlib
import json
import platform
from typing import Any

from edgert.backend import Store
from edgert.backend.base import cache_content
from edgert.board.host import cpu_name
from edgert.config import ModelConfig
from edgert.dataset import ImageDataset, LabeledDataset, open_images
from edgert.errors import EdgertError
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, from_bytes, load, read, to_bytes
from edgert.graph.operators import QDQ, is_integer
from edgert.quantization.run import ALONE, Job, Run, Target, needs_images

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
        from edgert.quantization.conversion import MAKERS  # all of quantization: who finds it cached starts without it

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
