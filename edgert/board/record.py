"""Boards as data: one YAML file each, shipped or written by a user, where every number has a source."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from edgert.board.sections import Board, Mode, Origin, Part, Precision, Sourced, bare_name
from edgert.config.document import Loc, read_document
from edgert.config.pipeline_file import document_error
from edgert.errors import ConfigError, nearest
from edgert.installation import data_folder

__all__ = [
    "Board",
    "Mode",
    "Precision",
    "board",
    "board_file",
    "board_names",
    "boards",
    "data_sheet",
    "find_board",
    "load_board",
    "numbers",
]

_EXAMPLE = "orin-nx-16gb"


def load_board(path: Path) -> Board:
    """Return the board in a file.

    Raises:
        ConfigError: the file is unreadable or not YAML, a key or number is unknown, missing or impossible, or its name
            differs from the file's. The error is the first mistake, with all others in ``others``.
    """
    try:
        document = read_document(path, env={}, has_overlay=False)
    except ConfigError as error:
        why = ": ".join(filter(None, (error.what, error.why))).replace("a pipeline file", "a board file")
        has_line = error.where and not error.where.endswith(":1")  # otherwise its fix is a pipeline file
        fix = error.fix if has_line else f"edgert boards {_EXAMPLE} --yaml prints one to start from"
        raise ConfigError(f"cannot read board file {path}", why=why, where=error.where, fix=fix) from error
    try:
        board = Board.model_validate(document.data)
    except ValidationError as error:
        raise document_error(document, error) from None
    mistakes = list(contradictions(board))
    if board.name != path.stem:
        mistakes.insert(0, (("name",), f"board file has name: {board.name!r}", "", f"name: {path.stem}"))
    errors = [ConfigError(what, why=why, where=document.where(loc), fix=fix) for loc, what, why, fix in mistakes]
    if errors:
        errors[0].others = tuple(errors[1:])
        raise errors[0]
    return board


def boards() -> tuple[Board, ...]:
    """Return all boards that come with edgert, by name; raise ConfigError if a file is damaged."""
    return tuple(map(_shipped, board_names()))


@lru_cache(maxsize=1)
def board_names() -> tuple[str, ...]:
    """Return the names of all boards that come with edgert."""
    return tuple(sorted(path.stem for path in data_folder("configs").glob("boards/*.yaml")))


def board(name: str) -> Board:
    """Return the board with a name; raise ConfigError if it is unknown.

    For an incomplete name, such as NVIDIA's "Jetson Orin Nano", the error suggests boards with all its words; otherwise
    it suggests the nearest name.
    """
    known = board_names()
    if name in known:
        return _shipped(name)
    hint, given = nearest(name, known), set(re.split(r"[^a-z0-9]+", name.lower())) - {"", "nvidia"}
    for words in (given, given - {"jetson"}):
        fitting = [board for board in known if words and words <= set(board.split("-"))]
        if fitting:
            *others, last = fitting
            hint = f"; which one: {', '.join(others)} or {last}?" if others else f"; did you mean {last!r}?"
            break
    fix = f"boards: {', '.join(known)}; or the path of a board file of your own"
    raise ConfigError(f"no board {name!r}{hint}", fix=fix)


@cache
def _shipped(name: str) -> Board:
    return load_board(data_folder("configs") / "boards" / f"{name}.yaml")


def find_board(text: str, directory: Path = Path()) -> Board:
    """Return the board for a value of ``board:`` or ``--board``.

    Args:
        text: path if it ends in ``.yaml`` or ``.yml`` or contains a slash, otherwise a name.
        directory: folder that a path is relative to; if there is no such file, the current folder is tried.

    Raises:
        ConfigError: the board is unknown, or its file is wrong.
    """
    if not _is_path(text):
        return board(text)
    path = board_file(text, directory)
    if not path.exists():
        places = dict.fromkeys(str(folder.absolute()) for folder in (directory, Path()))
        raise ConfigError(
            f"no board file {text!r}",
            why=f"it was searched from {' and from '.join(places)}",
            fix=f"edgert boards {_EXAMPLE} --yaml prints one to start from; edgert boards lists those known by name",
        )
    return load_board(path)


def board_file(text: str, directory: Path = Path()) -> Path:
    """Return the path of a board's file, which may not exist; arguments and errors are those of :func:`find_board`."""
    if not _is_path(text):
        return data_folder("configs") / "boards" / f"{board(text).name}.yaml"
    path = Path(text).expanduser()
    there = directory / path
    return path if not there.exists() and path.exists() else there


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text


# Contradictions of a board's numbers, such as a mode that is faster than its board.


Mistake = tuple[Loc, str, str, str]
"""Mistake in a board file: its key path, the wrong key and value, the reason or nothing, and the correction."""


_AT_MOST = {
    "cpu_cores": ("cpu", "cores"),
    "cpu_mhz": ("cpu", "max_mhz"),
    "sms": ("gpu", "sms"),
    "gpu_mhz": ("gpu", "max_mhz"),
    "dla_cores": ("dla", "cores"),
    "dla_mhz": ("dla", "max_mhz"),
    "second_dla_mhz": ("dla", "max_mhz"),
    "emc_mhz": ("memory", "emc_max_mhz"),
}
"""Key of a mode → number of the board that it cannot exceed."""
_CLOCKS = [key for key in _AT_MOST if key.endswith("_mhz")]


def contradictions(board: Board) -> Iterator[Mistake]:
    """Yield the contradictions in a board's numbers and names."""
    yield from _unit_mistakes(board)
    yield from _name_mistakes(board)
    for n, mode in enumerate(board.modes):
        yield from _mode_mistakes(board, n, mode)
    sections: list[tuple[Loc, object]] = [((name,), getattr(board, name)) for name in type(board).model_fields]
    sections += [((name, n), line) for name in ("modes", "idle") for n, line in enumerate(getattr(board, name))]
    for loc, section in sections:
        if isinstance(section, Sourced):
            yield from _origin_mistakes(loc, section)


def _mode_mistakes(board: Board, n: int, mode: Mode) -> Iterator[Mistake]:
    """Yield mistakes of a mode that exceeds its board, or whose free clock differs from the board's."""
    for key, (section, limit) in _AT_MOST.items():
        value, most = getattr(mode, key), getattr(getattr(board, section), limit)
        if value is None or most is None:
            continue
        what = f"mode {mode.name}: {key}: {value:g}"
        if value > most:
            fix = f"{key}: {most:g} or less, or correct {section}.{limit}"
            yield ("modes", n, key), f"{what} is impossible", f"the board has {section}.{limit}: {most:g}", fix
        elif value < most and key in mode.uncapped and key in _CLOCKS:
            why = f"the mode lists it under uncapped, but {section}.{limit} is {most:g}"
            yield ("modes", n, key), f"{what} is a cap", why, f"{key}: {most:g}"
    for key in mode.estimated:
        if getattr(mode, key, None) is None:
            what, fix = f"mode {mode.name}: estimated: {key!r} has no value", "write the estimate, or remove the key"
            yield ("modes", n, "estimated"), what, "", fix
    for key in mode.uncapped:
        if key not in _CLOCKS:
            what = f"mode {mode.name}: uncapped: {key!r} is not a clock"
            yield ("modes", n, "uncapped"), what, "", f"clocks: {', '.join(_CLOCKS)}"


def _name_mistakes(board: Board) -> Iterator[Mistake]:
    """Yield mistakes of modes without a unique name, and of names that are not those of modes."""
    seen: dict[str, str] = {}
    for n, mode in enumerate(board.modes):
        bare = bare_name(mode.name)
        if bare in seen:
            what, why = f"two modes are called {mode.name!r}", f"modes are selected by name; {seen[bare]!r} is above"
            yield ("modes", n, "name"), what, why, "rename or remove one of them"
        seen.setdefault(bare, mode.name)
    names = [mode.name for mode in board.modes]
    used: list[tuple[Loc, str, str]] = []
    used += [(("default_mode", "name"), "default mode", board.default_mode.name)] if board.default_mode else []
    used += [(("idle", n, "modes"), "idle watts", name) for n, line in enumerate(board.idle) for name in line.modes]
    for loc, of, name in used:
        if name not in names:
            what = f"{of} {name!r} is not a mode of the board{nearest(name, names)}"
            yield loc, what, "", f"modes: {', '.join(names)}"


def _unit_mistakes(board: Board) -> Iterator[Mistake]:
    dla, gpu = board.dla, board.gpu
    if not dla.cores and dla.generation is not None:
        what = f"dla.generation: {dla.generation} for a board without DLA cores"
        yield ("dla", "generation"), what, "dla.cores is 0", "generation: null, or correct dla.cores"
    if dla.cores and dla.generation is None:
        what, why = "dla.generation: null for a board with DLA cores", f"dla.cores is {dla.cores}"
        yield ("dla", "generation"), what, why, "generation: 1 (Xavier) or 2 (Orin)"
    if gpu.cuda_cores % gpu.sms:
        what = f"gpu.cuda_cores: {gpu.cuda_cores} is not a multiple of {gpu.sms} SMs"
        why, fix = "every SM has the same number of cores", "correct gpu.cuda_cores or gpu.sms"
        yield ("gpu", "cuda_cores"), what, why, fix


def _origin_mistakes(loc: Loc, section: Sourced) -> Iterator[Mistake]:
    """Yield mistakes of ``origins`` for keys that the section does not have."""
    keys = sorted(section.model_fields_set - Sourced.model_fields.keys())
    for n, origin in enumerate(section.origins):
        for key in origin.of:
            if key not in keys:
                what = f"origins of {key!r}, which is not in {'.'.join(map(str, loc))}{nearest(key, keys)}"
                yield (*loc, "origins", n, "of"), what, "", f"keys: {', '.join(keys)}"


# Data sheet: every number of a board with its source, and derived speeds.

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_ABOUT = frozenset(Sourced.model_fields)
_MAXIMUM = {"cpu_mhz": "cpu", "gpu_mhz": "gpu", "dla_mhz": "dla", "emc_mhz": "memory"}
"""Clock of a mode → section with its maximum, which applies where the mode does not limit the clock."""


@dataclass(frozen=True, slots=True)
class Number:
    """Entry of a board file and its source; a ``key`` is like ``gpu.max_mhz`` or ``modes.15W.gpu_mhz``."""

    key: str
    value: Any
    origin: Origin


def data_sheet(board: Board) -> dict[str, Any]:
    """Return a board as JSON values, with derived speeds of each mode and of its maxima; None means unknown."""
    data: dict[str, Any] = board.model_dump(mode="json")
    for mode, plain in zip(board.modes, data["modes"], strict=True):
        plain["derived"] = speeds(board, mode)
    data["derived"] = speeds(board, board.peak_mode)
    return data


def speeds(board: Board, mode: Mode) -> dict[str, Any]:
    """Return bandwidth and dense TOPS in a mode; a list with one number per core for the DLA."""
    cores = range(mode.dla_cores)
    return {
        "bandwidth_gb_s": board.bandwidth_gb_s(mode),
        "gpu_tops": {precision: board.gpu_tops(mode, precision) for precision in PRECISIONS},
        "dla_tops": {p: [board.dla_tops(mode, p, core) for core in cores] for p in PRECISIONS if p != "fp32"},
    }


def numbers(board: Board) -> Iterator[Number]:
    """Yield every entry of a board that has a source, in the order of its file."""
    for name in type(board).model_fields:
        section = getattr(board, name)
        if isinstance(section, Sourced):
            yield from (Number(f"{name}.{key}", value, section.origin(key)) for key, value in _entries(board, section))
    if (match := board.match) is not None:
        for one in match.variants:
            origin = Origin(of=("variants",), source=one.source, confidence=match.confidence, note=one.note)
            yield Number(f"match.{one.word}", one.name, origin)
    for index, line in enumerate(board.idle):
        yield from (Number(f"idle.{index}.{key}", value, line.origin(key)) for key, value in _entries(board, line))
    for mode in board.modes:
        for key, value in _entries(board, mode):
            origin = mode.origin(key)
            # A clock that the mode does not limit has the confidence of the board's maximum.
            if key in mode.uncapped and not any(key in one.of for one in mode.origins):
                maximum: Sourced = getattr(board, _MAXIMUM[key])
                origin = maximum.origin("emc_max_mhz" if key == "emc_mhz" else "max_mhz")
            yield Number(f"modes.{mode.name}.{key}", value, origin)


def _entries(board: Board, section: Sourced) -> Iterator[tuple[str, Any]]:
    written = section.model_fields_set
    for key in type(section).model_fields:
        of_dla = section is board.dla and key != "cores"
        absent = key not in written or (("dla" in key or of_dla) and not board.dla.cores)
        if key not in _ABOUT and key not in ("uncapped", "estimated", "variants") and not absent:
            value = getattr(section, key)
            yield key, value.model_dump() if isinstance(value, Part) else value
