"""What a bundle is built for: a board, its power mode, its TensorRT."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dla import Target as Dla
from edgert.board import HOST
from edgert.board.record import Board, board_file, find_board
from edgert.config import ModelConfig, PipelineFile
from edgert.config.engine_choice import ENGINES, ORT, TENSORRT_DLA, ReplicateConfig
from edgert.errors import ConfigError

THIS_MACHINE = ("auto", HOST)
_TENSORRT = {5: "8.5.2", 6: "10.3.0", 7: "10.13.3"}
"""JetPack → the TensorRT of its last release that boards are commonly on: JetPack 5.1 has 8.5.2, 6.2 has 10.3.0 and 7.0
has 10.13.3 (https://developer.nvidia.com/embedded/jetpack-archive)."""
_USUAL_JETPACK = 6
_FIRST_TYPED = 11
"""TensorRT's first release that takes no calibration cache: types and scales stand in the model."""


@dataclass(frozen=True)
class BuildTarget:
    """A board in a power mode, with a TensorRT.

    Attributes:
        board: None: this machine's processor, or whatever has ONNX Runtime.
        asked: the board as it was named, for a planner that looks it up again.
        mode: name of the power mode; empty without a board.
        tensorrt: release, ``"10.3.0"``; empty without a board.
        digest: of the board's file; empty without a board.
    """

    board: Board | None
    asked: str = HOST
    mode: str = ""
    tensorrt: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The board's, or ``host``."""
        return self.board.name if self.board is not None else HOST

    @property
    def has_dla(self) -> bool:
        """Whether the board has a DLA."""
        return self.board is not None and self.board.dla.cores > 0

    @property
    def dla(self) -> Dla:
        """The board's DLA, as its rules ask for it: one that a release without support has runs nothing. Boards with a
        DLA only."""
        assert self.board is not None  # asked by the caller: has_dla
        return Dla(self.board.dla.generation or 0, self.tensorrt)

    @property
    def takes_cache(self) -> bool:
        """Whether its TensorRT reads calibration caches."""
        return bool(self.tensorrt) and int(self.tensorrt.split(".")[0]) < _FIRST_TYPED

    def uses_dla(self, config: ModelConfig) -> bool:
        """Whether a model may have nodes on a DLA: the board has one, and ``placement:`` allows it."""
        return self.has_dla and precision_of(config, self) != "fp32" and _names_dla(config)


def build_target(file: PipelineFile, board: str | None, mode: str | None, tensorrt: str | None) -> BuildTarget:
    """What ``--board``, ``--mode`` and ``--trt`` mean; the pipeline's own board by default.

    Raises:
        ConfigError: no such board, mode or release; or a mode or release without a board.
    """
    asked = board or file.config.board
    if asked in THIS_MACHINE:
        for option, value in (("--mode", mode), ("--trt", tensorrt)):
            if value is not None:
                raise ConfigError(f"{option} of which board?", fix="--board NAME; edgert boards lists them")
        return BuildTarget(None)
    directory = file.document.path.parent
    found = find_board(asked, directory)
    digest = hashlib.sha256(board_file(asked, directory).read_bytes()).hexdigest()
    chosen = found.mode(mode) if mode is not None else found.usual_mode
    return BuildTarget(found, asked, chosen.name, tensorrt_of(found, tensorrt), digest)


def tensorrt_of(board: Board, asked: str | None) -> str:
    """The release in three numbers: the one asked for, or that of the board's usual JetPack. Raises ConfigError."""
    if asked is None:
        majors = [major for major in board.jetpack.majors if major in _TENSORRT]
        return _TENSORRT[_USUAL_JETPACK if _USUAL_JETPACK in majors or not majors else max(majors)]
    if not re.fullmatch(r"\d+\.\d+(\.\d+){0,2}", asked):
        raise ConfigError(f"{asked!r} is no TensorRT version", where="--trt", fix="write it like 10.3 or 8.5.2")
    if asked.startswith("9."):
        known = ", ".join(_TENSORRT.values())
        raise ConfigError(f"no Jetson has TensorRT {asked}", where="--trt", fix=f"JetPack's own are {known}")
    return asked if asked.count(".") > 1 else f"{asked}.0"


def precision_of(config: ModelConfig, target: BuildTarget) -> str:
    """What a model is built in. ``auto`` is INT8 where there are images to calibrate on; else FP16 on a board, whose
    GPU and DLA are faster in it, and elsewhere what the file has."""
    if config.precision != "auto":
        return config.precision
    if config.calibrate is not None:
        return "int8"
    return "fp32" if target.board is None else "fp16"


def engines_of(target: BuildTarget, configs: list[ModelConfig], asked: Sequence[str] = ()) -> list[str]:
    """Who may run the bundle, in order: those the pipeline file asks for, without what the target cannot have.

    Raises:
        ConfigError: nothing is left of what was asked for.
    """
    if target.board is None:
        known: Sequence[str] = [ORT]
    else:
        known = [name for name in ENGINES if name != TENSORRT_DLA or any(map(target.uses_dla, configs))]
    found = [name for name in asked if name in known] if asked else list(known)
    if not found:
        raise ConfigError(
            f"none of engines: {', '.join(asked)} can run a bundle for {target.name}",
            why=f"there it is {', '.join(known)}",
            fix=f"add one of them, or --board {HOST} for a bundle that any machine runs",
        )
    return found


def _names_dla(config: ModelConfig) -> bool:
    asked = config.placement
    if asked == "auto":
        return True
    if isinstance(asked, str):
        return asked.startswith("dla")
    names = asked.replicate if isinstance(asked, ReplicateConfig) else asked.values()
    return any(name.startswith("dla") for name in names)
