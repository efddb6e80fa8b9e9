"""A board's data sheet: every number of its file, what follows from it, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from edgert.board.sections import Origin, Part, Precision, Sourced

if TYPE_CHECKING:
    from edgert.board.record import Board
    from edgert.board.sections import Mode

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_ABOUT = frozenset(Sourced.model_fields)
_MAXIMUM = {"cpu_mhz": "cpu", "gpu_mhz": "gpu", "dla_mhz": "dla", "emc_mhz": "memory"}
"""Clock of a mode → the section whose maximum it is where the mode leaves it free."""


@dataclass(frozen=True, slots=True)
class Number:
    """One entry of a board file and where it comes from; ``key`` like ``gpu.max_mhz`` or ``modes.15W.gpu_mhz``."""

    key: str
    value: Any
    origin: Origin


def data_sheet(board: Board) -> dict[str, Any]:
    """A board as plain data for JSON: its file, and beside each mode, and for everything at its maximum, the speeds
    that follow. None is unknown."""
    data: dict[str, Any] = board.model_dump(mode="json")
    for mode, plain in zip(board.modes, data["modes"], strict=True):
        plain["derived"] = speeds(board, mode)
    data["derived"] = speeds(board, board.peak_mode)
    return data


def speeds(board: Board, mode: Mode) -> dict[str, Any]:
    """Bandwidth and dense TOPS in a mode; those of the DLA one for each core."""
    cores = range(mode.dla_cores)
    return {
        "bandwidth_gb_s": board.bandwidth_gb_s(mode),
        "gpu_tops": {precision: board.gpu_tops(mode, precision) for precision in PRECISIONS},
        "dla_tops": {p: [board.dla_tops(mode, p, core) for core in cores] for p in PRECISIONS if p != "fp32"},
    }


def numbers(board: Board) -> Iterator[Number]:
    """Every entry of a board that has a source, in the order of its file. What a board lacks has no entries."""
    for name in type(board).model_fields:
        section = getattr(board, name)
        if isinstance(section, Sourced):
            yield from (Number(f"{name}.{key}", value, section.origin(key)) for key, value in _entries(board, section))
    for index, line in enumerate(board.idle):
        yield from (Number(f"idle.{index}.{key}", value, line.origin(key)) for key, value in _entries(board, line))
    for mode in board.modes:
        for key, value in _entries(board, mode):
            origin = mode.origin(key)
            # A clock that the mode leaves free is known as well as the board's maximum is.
            if key in mode.uncapped and not any(key in one.of for one in mode.origins):
                maximum: Sourced = getattr(board, _MAXIMUM[key])
                origin = maximum.origin("emc_max_mhz" if key == "emc_mhz" else "max_mhz")
            yield Number(f"modes.{mode.name}.{key}", value, origin)


def _entries(board: Board, section: Sourced) -> Iterator[tuple[str, Any]]:
    written = section.model_fields_set
    for key in type(section).model_fields:
        of_dla = section is board.dla and key != "cores"
        absent = key not in written or (("dla" in key or of_dla) and not board.dla.cores)
        if key not in _ABOUT and key not in ("uncapped", "estimated") and not absent:
            value = getattr(section, key)
            yield key, value.model_dump() if isinstance(value, Part) else value
