"""Whether a board can compile a bundle, asked before minutes of work."""

from __future__ import annotations

from collections.abc import Collection

from edgert.board import HOST
from edgert.board.record import find_board
from edgert.build.target import THIS_MACHINE, BuildTarget, build_target
from edgert.config import PipelineFile
from edgert.config.engine import TENSORRT, TENSORRT_DLA
from edgert.errors import ArtifactError, ConfigError, DeviceError
from edgert.remote.there import There
from edgert.units import format_bytes

_BASE_BYTES, _TIMES = 64 * 2**20, 4
"""Space wanted: for the bundle as it comes, unpacked, its engines, and as it goes; and for logs."""


def target_there(
    file: PipelineFile, there: There, board: str | None, mode: str | None, tensorrt: str | None
) -> BuildTarget:
    """What a pipeline is built for: what its file and the options name; else what is there.

    Raises:
        ConfigError: no such board, mode or release.
    """
    asked = board or file.config.board
    if asked in THIS_MACHINE and board is None:
        asked = there.name
    if asked != there.name or asked == HOST:
        return build_target(file, asked, mode, tensorrt)
    known = bool(there.mode) and find_board(asked).has_mode(there.mode)
    return build_target(file, asked, mode or (there.mode if known else None), tensorrt or there.tensorrt or None)


def check_target(there: There, address: str, board: str, engines: Collection[str], tensorrt: str) -> None:
    """Holds what a bundle is for to what is there.

    Args:
        board: the bundle's; ``host`` is for any machine.
        engines: who may run it.
        tensorrt: the release it is for; empty for ``host``.

    Raises:
        ConfigError: it is for another board.
        DeviceError: the board has no TensorRT, or one of another kind.
    """
    if board not in (HOST, there.name):
        what = "is no Jetson" if there.name == HOST else f"is a {there.name}"
        raise ConfigError(
            f"this is built for {board}, and {address} {what}",
            why="placement, scales and predictions are another board's",
            where="--remote",
            fix=f"leave --board out, or write --board {there.name}",
        )
    if not {TENSORRT, TENSORRT_DLA}.intersection(engines):
        return
    if not there.tensorrt:
        raise DeviceError(
            f"there is no TensorRT on {address}",
            why=there.tensorrt_fix,
            where=address,
            fix="edgert doctor, on the board, says how to get it",
        )
    if tensorrt.split(".")[0] != there.tensorrt.split(".")[0]:
        raise ConfigError(
            f"this is built for TensorRT {tensorrt}, and {address} has {there.tensorrt}",
            why="scales and precisions are handed over in another form",
            where="--trt",
            fix="build the pipeline again without --trt: the board is asked",
        )


def check_space(there: There, address: str, size_bytes: int) -> None:
    """Raises ArtifactError when the board's disk has too little space for a bundle of so many bytes."""
    wanted = _BASE_BYTES + _TIMES * size_bytes
    if there.free_bytes < wanted:
        raise ArtifactError(
            f"the disk of {address} is full",
            why=f"{format_bytes(there.free_bytes)} are free, {format_bytes(wanted)} are wanted: {_TIMES} times the "
            "bundle, for it and its engines",
            where=f"{address}: {there.cache}",
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
