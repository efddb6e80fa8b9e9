"""Model that a pipeline runs: the file itself, or a cached conversion to the precision of its section."""

import hashlib
import json
import platform
from typing import Any

from edgert.backend import Store, base
from edgert.board.host import cpu_name
from edgert.config import ModelConfig
from edgert.dataset import ImageDataset, LabeledDataset, open_images
from edgert.errors import located_at
from edgert.files import FileStore, cache_folder
from edgert.graph import Model, from_bytes, load, to_bytes
from edgert.quantization.run import DEFAULT_RUN, Job, Run, Target, is_quantized, needs_images

_CACHE_VERSION = 3
"""Part of the cache key, to increase when conversion changes."""


def in_precision(
    config: ModelConfig,
    run: Run = DEFAULT_RUN,
    *,
    store: Store | None = None,
    target: Target = "ort",
    rows: int = 1,
    batched: bool = False,
) -> Model:
    """Load a section's model and convert it to the precision that the section asks for.

    ``int8`` calibrates and quantizes once; the result is cached until the file, its images, labels or settings change.
    ``auto`` without ``calibrate:`` returns the file's model. With it, ``auto`` chooses int8 where it is faster here
    within the accuracy budget, else fp32, or fp16 for TensorRT. A quantized file is never converted. For ``target:
    gpu`` INT8 has TensorRT's form, and ``auto`` measures no times. With several ``rows`` per run, an open batch size of
    the file stays open, and ``auto`` times runs of this many. ``batched``: an INT8 model must take several images, even
    where the file fixes its batch to one (:mod:`~edgert.quantization.batched`). Raises ModelError: the model must run
    in batches, and a node accepts one image only. Raises CalibrationError: there are no images to calibrate on, or too
    few. Raises BuildError: the accuracy budget cannot be met. Raises EdgertError: the model, the images or the labels
    cannot be used.
    """
    job = Job(run, target, rows, batched)
    model = load(config.onnx)
    if not config.is_converted or is_quantized(model):
        return model
    with located_at(run.where):
        key = _key(model, config, job)
    store = store or FileStore(cache_folder() / "precision")
    content = store.get(key)
    if content is None:
        from edgert.quantization.conversion import MAKERS  # slow to import, and not needed for a cached model

        content = to_bytes(MAKERS[config.precision](model, config, job))
        base.cache_content(store, key, content)
    return from_bytes(content, model.path)


def check_precision(config: ModelConfig, where: str = "") -> None:
    """Check the images and labels that a section names, without decoding images.

    Raises CalibrationError: precision is int8, and no images are named. Raises EdgertError: images or labels are
    missing.
    """
    with located_at(f"{where}.calibrate"):
        if config.precision == "int8" or config.calibrate is not None:
            _calibration_images(config)
    with located_at(f"{where}.accuracy"):
        _accuracy_dataset(config)


def _key(model: Model, config: ModelConfig, job: Job) -> str:
    speed = {"threads", "replicas", "placement", "tuning"}
    settings: dict[str, Any] = config.model_dump(mode="json", exclude={"onnx", *speed})
    facts = [_CACHE_VERSION, model.digest, settings, platform.machine(), *_data_digests(config)]
    if job.target != "ort":
        facts.append(job.target)
    if job.rows > 1:
        facts.append("batched" if job.batched and config.precision != "fp16" else "open batch")
    if config.precision == "auto":
        facts.append([cpu_name(), job.rows] if job.rows > 1 else cpu_name())
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _data_digests(config: ModelConfig) -> list[str]:
    """Return digests of the images and labels; raise CalibrationError for int8 without images."""
    if config.precision not in ("int8", "auto"):
        return []
    found = [_calibration_images(config).digest()]
    if (dataset := _accuracy_dataset(config)) is not None:
        found.append(dataset.images.digest())
        found.append(hashlib.sha256(dataset.path.read_bytes()).hexdigest() if dataset.path.is_file() else "")
    return found


def _calibration_images(config: ModelConfig) -> ImageDataset:
    if config.calibrate is None:
        raise needs_images(config)
    return open_images(config.calibrate.images, limit=config.calibrate.limit)


def _accuracy_dataset(config: ModelConfig) -> LabeledDataset | None:
    if config.accuracy is None:
        return None
    from edgert.dataset import open_dataset
    from edgert.stages.decode.kinds import labels_of

    return open_dataset(config.accuracy.dataset, config.task, labels_of(config))
