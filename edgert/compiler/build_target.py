"""Target of a build, which is a board with a power mode and a TensorRT, and one model to build for it."""

import hashlib
import platform
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dla import Target as Dla
from edgert.board import HOST, THIS_MACHINE
from edgert.board.record import Board, board_file, find_board
from edgert.config import InferStage, ModelConfig, PipelineConfig, PipelineFile, SourceStage
from edgert.config.engine_choice import ENGINES, ORT, TENSORRT_DLA, ReplicateConfig
from edgert.custom_op import source_digests
from edgert.dataset import ImageDataset, open_images
from edgert.errors import ConfigError
from edgert.graph import Model, load
from edgert.installation import demo_images
from edgert.quantization.section import ModelSection
from edgert.stages.source.kinds import is_live as is_live_source

MODEL = "model.onnx"
COMPARED_IMAGES = 4
"""Number of images on which outputs are compared."""

_TENSORRT = {5: "8.5.2", 6: "10.3.0", 7: "10.13.3"}
"""JetPack → TensorRT of its last common release: JetPack 5.1 has 8.5.2, 6.2 has 10.3.0 and 7.0 has 10.13.3
(https://developer.nvidia.com/embedded/jetpack-archive)."""
_USUAL_JETPACK = 6
_FIRST_TYPED = 11
"""First release of TensorRT without calibration caches; types and scales are in the model."""


@dataclass(frozen=True)
class BuildTarget:
    """A board in a power mode, with a TensorRT.

    Attributes:
        board: the board; None: any machine with ONNX Runtime.
        requested: name or file of the board as requested, by which the planner finds it.
        mode: name of the power mode; empty without a board.
        tensorrt: release, such as ``"10.3.0"``; empty without a board.
        digest: SHA-256 of the board's file; empty without a board.
    """

    board: Board | None
    requested: str = HOST
    mode: str = ""
    tensorrt: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Name of the board, or ``host``."""
        return self.board.name if self.board is not None else HOST

    @property
    def has_dla(self) -> bool:
        """Whether the board has a DLA."""
        return self.board is not None and self.board.dla.cores > 0

    @property
    def dla(self) -> Dla:
        """The board's DLA, whose rules decide what it runs; for boards with a DLA only.

        On a TensorRT release without support for it, nothing runs on it.
        """
        assert self.board is not None  # the caller checks has_dla
        return Dla(self.board.dla.generation or 0, self.tensorrt)

    @property
    def takes_cache(self) -> bool:
        """Whether its TensorRT reads calibration caches."""
        return bool(self.tensorrt) and int(self.tensorrt.split(".")[0]) < _FIRST_TYPED

    def uses_dla(self, config: ModelConfig) -> bool:
        """Return whether a model may have nodes on a DLA: the board has one, and ``placement:`` allows it."""
        if not self.has_dla or precision_of(config, self) == "fp32":
            return False
        requested = config.placement
        if isinstance(requested, str):
            return requested == "auto" or requested.startswith("dla")
        names = requested.replicate if isinstance(requested, ReplicateConfig) else requested.values()
        return any(name.startswith("dla") for name in names)


def build_target(file: PipelineFile, board: str | None, mode: str | None, tensorrt: str | None) -> BuildTarget:
    """Return the target of ``--board``, ``--mode`` and ``--trt``; by default the board of the pipeline.

    Raises:
        ConfigError: the board, mode or release does not exist, or there is a mode or release without a board.
    """
    requested = board or file.config.board
    if requested in THIS_MACHINE:
        for option, value in (("--mode", mode), ("--trt", tensorrt)):
            if value is not None:
                raise ConfigError(
                    f"{option} needs a board", why="no board is named", fix="--board NAME; edgert boards lists them"
                )
        return BuildTarget(None)
    directory = file.document.path.parent
    found = find_board(requested, directory)
    digest = hashlib.sha256(board_file(requested, directory).read_bytes()).hexdigest()
    chosen = found.mode(mode) if mode is not None else found.usual_mode
    return BuildTarget(found, requested, chosen.name, tensorrt_of(found, tensorrt), digest)


def tensorrt_of(board: Board, requested: str | None) -> str:
    """Return the TensorRT release in three numbers: the requested one, or that of the board's usual JetPack.

    Raises:
        ConfigError: no Jetson has that release.
    """
    if requested is None:
        majors = [major for major in board.jetpack.majors if major in _TENSORRT]
        return _TENSORRT[_USUAL_JETPACK if _USUAL_JETPACK in majors or not majors else max(majors)]
    if not re.fullmatch(r"\d+\.\d+(\.\d+){0,2}", requested):
        raise ConfigError(f"{requested!r} is no TensorRT version", where="--trt", fix="write it like 10.3 or 8.5.2")
    if requested.startswith("9."):
        known = ", ".join(_TENSORRT.values())
        raise ConfigError(f"no Jetson has TensorRT {requested}", where="--trt", fix=f"JetPack's own are {known}")
    return requested if requested.count(".") > 1 else f"{requested}.0"


def precision_of(config: ModelConfig, target: BuildTarget) -> str:
    """Return the precision in which a model is built.

    ``auto`` is INT8 with calibration images. Without them it is FP16 on a board, whose GPU and DLA are faster in FP16,
    and the precision of the file elsewhere.
    """
    if config.precision != "auto":
        return config.precision
    if config.calibrate is not None:
        return "int8"
    return "fp32" if target.board is None else "fp16"


def engines_of(target: BuildTarget, configs: list[ModelConfig], requested: Sequence[str] = ()) -> list[str]:
    """Return the engines that may run the bundle, in order: those of the pipeline file that the target supports.

    Raises:
        ConfigError: the target supports none of them.
    """
    if target.board is None:
        known: Sequence[str] = [ORT]
    else:
        known = [name for name in ENGINES if name != TENSORRT_DLA or any(map(target.uses_dla, configs))]
    found = [name for name in requested if name in known] if requested else list(known)
    if not found:
        raise ConfigError(
            f"none of engines: {', '.join(requested)} can run a bundle for {target.name}",
            why=f"there it is {', '.join(known)}",
            fix=f"add one of them, or --board {HOST} for a bundle that any machine runs",
        )
    return found


def stages_running(config: PipelineConfig, name: str) -> Mapping[str, InferStage]:
    """Return the stages that run a model, by name."""
    stages = config.stages.items()
    return {key: stage for key, stage in stages if isinstance(stage, InferStage) and stage.infer == name}


def batching_stages(config: PipelineConfig, name: str) -> tuple[str, ...]:
    """Return the names of the stages that run a model in batches."""
    return tuple(key for key, stage in stages_running(config, name).items() if stage.batch is not None)


def is_live(file: PipelineFile) -> bool:
    """Return whether any source is live, such as a camera, so that latency counts instead of throughput."""
    stages, directory = file.config.stages.values(), file.document.path.parent
    return any(is_live_source(stage, directory) for stage in stages if isinstance(stage, SourceStage))


@dataclass(frozen=True, kw_only=True)
class ModelJob(ModelSection):
    """One model to build: its section of the pipeline file, and the target.

    Attributes:
        target: target of the build.
        state: folder of states from which interrupted steps resume.
        stop: event that ends a step which checks it.
        batched: whether stages run it in batches.
    """

    target: BuildTarget
    state: Path
    stop: threading.Event
    batched: bool = False

    @property
    def precision(self) -> str:
        """Precision to build: ``fp32``, ``fp16`` or ``int8``."""
        return precision_of(self.config, self.target)

    @property
    def compiles_for_dla(self) -> bool:
        """Whether a DLA may run a part of it, with a TensorRT that supports that DLA."""
        return self.target.uses_dla(self.config) and self.target.dla.release.answer != "no"

    @property
    def keeps_batch(self) -> bool:
        """Whether its batch size stays dynamic, so that ONNX Runtime can run incomplete batches."""
        return self.batched and self.target.board is None

    @property
    def is_one_size(self) -> bool:
        """Whether its shapes are made static."""
        if self.keeps_batch:
            return False
        return len(self.config.profiles) <= 1 and (bool(self.why_usual_size) or not self.config.input.shape.is_open)

    @property
    def why_usual_size(self) -> str:
        """Reason why only the usual size of an open ``input: shape`` is built; empty if all sizes are."""
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
        """Digest of the calibration images; empty without ``calibrate:``."""
        return "" if self.config.calibrate is None else self.images.digest()

    @cached_property
    def images(self) -> ImageDataset:
        """The calibration images; without ``calibrate:`` a few images of the demo.

        Raises:
            ConfigError: the images cannot be used.
        """
        requested = self.config.calibrate
        if requested is None:
            return open_images(demo_images(), limit=COMPARED_IMAGES)
        return open_images(requested.images, limit=requested.limit, where=self.where)

    def input_data(self) -> dict[str, Any]:
        """Return the section ``input:`` as plain data."""
        return self.config.input.model_dump(mode="json")

    def model(self, content: bytes) -> Model:
        """Return ONNX bytes as a model with the path of the original file. Raises ModelError for other bytes."""
        return model_of(content, self.config.onnx)


def model_of(content: bytes, path: Path) -> Model:
    """Return ONNX bytes as a model; ``path`` is its name in messages. Raises ModelError for other bytes."""
    with as_files({MODEL: content}) as folder:
        loaded = load(folder / MODEL)
    return Model(loaded.proto, path, loaded.digest)


@contextmanager
def as_files(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Yield a temporary folder with these files."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        yield Path(name)


def software() -> dict[str, str]:
    """Return the versions of the software that results depend on.

    The last digits may differ between releases and processor families; a changed custom operator changes more.
    """
    return _libraries() | source_digests()


@lru_cache(maxsize=1)
def _libraries() -> dict[str, str]:
    names = ("numpy", "onnx", "onnxruntime")
    found = {"machine": platform.machine(), **dict.fromkeys(names, "")}
    for name in names:
        with suppress(PackageNotFoundError):  # ONNX Runtime's packages for GPUs have other names
            found[name] = version(name)
    return found
