"""What ``--mode`` and ``--trt`` ask for, checked before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence

from dla import ORIN, supported_by
from edgert.board.record import Board
from edgert.errors import ConfigError, nearest
from edgert.place.capability import target_of


def check_mode(asked: Sequence[Board], mode: str) -> None:
    """Raises ConfigError for a power mode that none of several boards has; one board says so itself."""
    if len(asked) == 1 or any(board.has_mode(mode) for board in asked):
        return
    names = sorted({one.name for board in asked for one in board.modes})
    hint = nearest(mode.upper(), names)
    raise ConfigError(f"no board has a power mode {mode!r}{hint}", where="--mode", fix=f"modes: {', '.join(names)}")


def has_no_mode(board: Board, mode: str) -> ConfigError:
    """Why one of several boards has no row in a mode that another one has."""
    return ConfigError("no such power mode", why=f"it has {', '.join(one.name for one in board.modes)}")


def releases(asked: Sequence[Board], tensorrt: str | None) -> list[str]:
    """What a release of TensorRT means for the boards' DLA, where that is not a plain yes.

    Raises:
        ConfigError: that is no version number.
    """
    if tensorrt is None:
        return []
    target_of(ORIN, tensorrt, "int8")
    generations = {board.dla.generation for board in asked if board.dla.cores and board.dla.generation is not None}
    verdicts = [supported_by(tensorrt, generation) for generation in sorted(generations)]
    return [f"DLA: {verdict.reason}; {verdict.fix}" for verdict in verdicts if verdict.answer != "yes"]
