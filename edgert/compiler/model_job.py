"""One model of a pipeline on its way into a bundle, and what its build steps share."""

from __future__ import annotations

import platform
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.compiler.build_target import BuildTarget, precision_of
from edgert.config import ModelConfig
from edgert.custom_op import source_digests
from edgert.installation import demo_images

if TYPE_CHECKING:
    from edgert.dataset import ImageDataset
    from edgert.graph import Model

MODEL = "model.onnx"
COMPARED_IMAGES = 4
"""Number of images that outputs are compared on."""


@dataclass(frozen=True)
class ModelJob:
    """One model to build: its section of the pipeline file, and the target.

    Attributes:
        name: in the pipeline file.
        config: its section.
        where: its place in the file, for errors.
        directory: of the pipeline file.
        target: what it is built for.
        state: folder from which interrupted steps resume.
        stop: ends a step that polls it.
        batched: whether stages run it in batches.
    """

    name: str
    config: ModelConfig
    where: str
    directory: Path
    target: BuildTarget
    state: Path
    stop: threading.Event
    batched: bool = False

    @property
    def precision(self) -> str:
        """``fp32``, ``fp16`` or ``int8``."""
        return precision_of(self.config, self.target)

    @property
    def compiles_for_dla(self) -> bool:
        """Whether a DLA may run some of it, with a TensorRT that supports that DLA."""
        return self.target.uses_dla(self.config) and self.target.dla.release.answer != "no"

    @property
    def keeps_batch(self) -> bool:
        """Whether its batch size stays open: ONNX Runtime then runs batches that are less than full."""
        return self.batched and self.target.board is None

    @property
    def is_one_size(self) -> bool:
        """Whether its shapes are made static."""
        if self.keeps_batch:
            return False
        return len(self.config.profiles) <= 1 and (bool(self.pinned) or not self.config.input.shape.is_open)

    @property
    def pinned(self) -> str:
        """Why a model that ``input: shape`` gives several sizes is built at the usual one only; empty if it is not."""
        if not self.config.input.shape.is_open or self.keeps_batch:
            return ""
        if self.target.board is None:
            return "ONNX Runtime runs it at the usual size"
        if self.target.uses_dla(self.config):
            return "a DLA takes one shape only; placement: gpu allows them all"
        if self.precision == "int8":
            return "INT8 ranges belong to the size they were measured at"
        if self.precision == "fp16" and not self.target.takes_cache:
            return f"TensorRT {self.target.tensorrt} takes float16 as a model of its own, made at one size"
        return ""

    @cached_property
    def images_digest(self) -> str:
        """Digest of the calibration images; empty where there are none."""
        asked = self.config.calibrate
        if asked is None:
            return ""
        return self.images.digest()

    @cached_property
    def images(self) -> ImageDataset:
        """The calibration images; a few of the demo's where none are named. Raises ConfigError."""
        from edgert.dataset import open_images

        asked = self.config.calibrate
        if asked is None:
            return open_images(demo_images(), limit=COMPARED_IMAGES)
        return open_images(asked.images, limit=asked.limit, where=self.where)

    def seen(self) -> dict[str, Any]:
        """The section ``input:`` as plain data."""
        return self.config.input.model_dump(mode="json")

    def model(self, content: bytes) -> Model:
        """ONNX bytes as a model, under the name of the file that it was made from. Raises ModelError."""
        return model_of(content, self.config.onnx)


def model_of(content: bytes, path: Path) -> Model:
    """ONNX bytes as a model; ``path`` is what messages call it. Raises ModelError."""
    from edgert.graph import Model, load

    with as_files({MODEL: content}) as folder:
        loaded = load(folder / MODEL)
    return Model(loaded.proto, path, loaded.digest)


@contextmanager
def as_files(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A folder that holds them, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        yield Path(name)


def software() -> dict[str, str]:
    """What computes: last digits may differ from one release or processor family to another, and more where a
    custom operator was changed."""
    return _libraries() | source_digests()


@lru_cache(maxsize=1)
def _libraries() -> dict[str, str]:
    return {name: _version(name) for name in ("numpy", "onnx", "onnxruntime")} | {"machine": platform.machine()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # onnxruntime has other names with a GPU; a step that needs it reports it
        return ""
