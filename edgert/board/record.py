"""Boards as data: one YAML file each, shipped or written by a user, where every number has a source."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError

from edgert import yaml_nodes
from edgert.board import sections
from edgert.board.consistency import Loc, Mistake, contradictions, dotted, type_mistake
from edgert.board.sections import Mode, Origin, Part, Precision, Sourced, Text
from edgert.errors import ConfigError, cause, nearest
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

_TRANSFERS = 2
"""Transfers of double data rate memory per clock of its controller (JEDEC JESD209)."""
_EXAMPLE = "orin-nx-16gb"


class DefaultMode(Sourced):
    """Power mode into which a freshly installed system boots."""

    name: Text


class Board(Part):
    """Jetson module, or a user's own board; immutable.

    Its ``name`` is the value of ``board:`` and ``--board``, and the name of its file.

    Attributes:
        match: identifiers that a running system is recognized by; None if it never is.
        encoder: video encoder; None if the file does not describe it.
        advertised: advertised speed; None if there is none in INT8.
        idle: readings of the idle module's power; empty if unknown.
        modes: power modes, as ``nvpmodel`` lists them.
        default_mode: mode into which it boots; None if unknown.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    title: Text
    soc: Text
    match: sections.Match | None = None
    memory: sections.Memory
    gpu: sections.Gpu
    cpu: sections.Cpu
    dla: sections.Dla
    jetpack: sections.JetPack
    encoder: sections.VideoEncoder | None = None
    advertised: sections.Advertised | None = None
    idle: Annotated[tuple[sections.Idle, ...], Field(strict=False)] = ()
    modes: Annotated[tuple[Mode, ...], Field(min_length=1, strict=False)]
    default_mode: DefaultMode | None = None

    @property
    def without_edgert(self) -> str:
        """Statement that edgert itself cannot run on this board, with the reason; empty where it can."""
        why = self.jetpack.no_edgert
        return f"edgert itself does not run on a {self.title}: {why}" if why else ""

    def mode(self, name: str) -> Mode:
        """Return the power mode with a name, ignoring case and the prefix ``MODE_`` of some boards.

        Raises:
            ConfigError: the board has no such mode; the error lists its modes.
        """
        found = self._mode(name)
        if found is None:
            names = [mode.name for mode in self.modes]
            hint = nearest(name.upper(), names)
            raise ConfigError(f"{self.name} has no power mode {name!r}{hint}", fix=f"modes: {', '.join(names)}")
        return found

    def has_mode(self, name: str) -> bool:
        """Return whether :meth:`mode` finds this name."""
        return self._mode(name) is not None

    def _mode(self, name: str) -> Mode | None:
        wanted = _bare(name)
        return next((mode for mode in self.modes if _bare(mode.name) == wanted), None)

    @property
    def usual_mode(self) -> Mode:
        """Mode into which it boots; if unknown, the first mode with known clocks, or else the first."""
        if self.default_mode is not None:
            return self.mode(self.default_mode.name)
        return next((mode for mode in self.modes if not mode.unknown), self.modes[0])

    @property
    def peak_mode(self) -> Mode:
        """Mode with all units on at their fastest clocks, as advertised; ``nvpmodel`` may not have such a mode."""
        return Mode(
            name="peak",
            watts=None,
            cpu_cores=self.cpu.cores,
            cpu_mhz=self.cpu.max_mhz,
            sms=self.gpu.sms,
            gpu_mhz=self.gpu.max_mhz,
            dla_cores=self.dla.cores,
            dla_mhz=self.dla.max_mhz,
            emc_mhz=self.memory.emc_max_mhz,
            source="the maxima of this board's sections",
            confidence="low",
        )

    def idle_w(self, mode: Mode, clocks: Literal["up", "down"] | None = None) -> float | None:
        """Return the power of the idle module in a mode, as the mean of the readings; None if unknown.

        Args:
            mode: power mode of this board.
            clocks: kind of readings; None for the mean of both kinds, because governors change clocks with the load.
        """
        if clocks is None:
            both = [found for found in (self.idle_w(mode, "down"), self.idle_w(mode, "up")) if found is not None]
            return sum(both) / len(both) if both else None
        lines = [line for line in self.idle if line.clocks == clocks]
        own = [line.watts for line in lines if mode.name in line.modes]
        every = own or [line.watts for line in lines if not line.modes]
        return sum(every) / len(every) if every else None

    # Peak speeds follow from clocks, units and bus, and no workload reaches them. None means that a clock or rate is
    # not published, or that the board lacks the unit.

    def bandwidth_gb_s(self, mode: Mode) -> float | None:
        """Return the DRAM bandwidth in 10⁹ bytes per second: clock × 2 transfers × width of the bus."""
        return None if mode.emc_mhz is None else mode.emc_mhz * _TRANSFERS * self.memory.bus_bits / 8 / 1000

    def gpu_tops(self, mode: Mode, precision: Precision) -> float | None:
        """Return dense 10¹² operations per second of active SMs; also None without a fast path for the precision."""
        rate = getattr(self.gpu.ops_per_clock, precision)
        if rate is None or mode.sms is None or mode.gpu_mhz is None:
            return None
        return float(rate * mode.sms * mode.gpu_mhz / 1e6)

    def dla_tops(self, mode: Mode, precision: Precision, core: int = 0) -> float | None:
        """Return dense 10¹² operations per second of a DLA core; also None for FP32 and for a missing core."""
        rate = getattr(self.dla.ops_per_clock, precision, None)
        clock_mhz = mode.dla_clock_mhz(core)
        return None if rate is None or clock_mhz is None else float(rate * clock_mhz / 1e6)


def load_board(path: Path) -> Board:
    """Return the board in a file.

    Raises:
        ConfigError: the file is unreadable or not YAML, a key or number is unknown, missing or impossible, or its name
            differs from the file's. The error is the first mistake, with all others in ``others``.
    """
    try:
        node = yaml_nodes.compose(path.read_text(encoding="utf-8"))
        data: object = yaml.constructor.SafeConstructor().construct_document(node) if node else None
    except FileNotFoundError as error:
        fix = f"edgert boards {_EXAMPLE} --yaml prints one to start from"
        raise ConfigError(f"cannot read board file {path}", why="there is no such file", fix=fix) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read board file {path}", why=cause(error)) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"board file {path} is not valid YAML", why=str(error)) from error
    record, wrong = None, [*_duplicate_keys(node, (), set()), *contradictions(data)]
    try:
        record = Board.model_validate(data)
    except ValidationError as error:
        wrong += [type_mistake(item, Board) for item in error.errors(include_url=False)]
    if isinstance(data, dict) and isinstance(data.get("name"), str) and data["name"] != path.stem:
        wrong.append(Mistake(("name",), f"board file has name: {data['name']!r}", fix=f"name: {path.stem}"))
    if record is None or wrong:
        raise _error(path, node, wrong)
    return record


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


def _bare(name: str) -> str:
    return name.strip().lower().removeprefix("mode_")


def _duplicate_keys(node: yaml.Node | None, loc: Loc, visited: set[int]) -> Iterator[Mistake]:
    """Yield a mistake for each duplicate key, because YAML would silently use the second; visit aliases once."""
    if id(node) in visited:
        return
    visited.add(id(node))
    seen: set[int | str] = set()
    for n, (key, child) in enumerate(_children(node)):
        name = n if key is None else str(key.value)
        if name in seen:
            what = f"{dotted((*loc, name))} is defined twice in a board file"
            yield Mistake((*loc, name), what, "the second would silently replace the first", "remove one of them")
        seen.add(name)
        yield from _duplicate_keys(child, (*loc, name), visited)


def _children(node: yaml.Node | None) -> Iterator[tuple[yaml.Node | None, yaml.Node]]:
    """Yield (key, value) of each entry of a mapping or list; the key of a list's entry is None."""
    if isinstance(node, yaml.MappingNode):
        yield from node.value
    elif isinstance(node, yaml.SequenceNode):
        yield from ((None, child) for child in node.value)


def _error(path: Path, node: yaml.Node | None, wrong: Iterable[Mistake]) -> ConfigError:
    """Return the first mistake of the file as an error, with all others in ``others``."""
    placed = sorted(((_line(node, mistake.loc), mistake) for mistake in wrong), key=lambda pair: pair[0])
    first, *others = (
        ConfigError(one.what, why=one.why, where=f"{path}:{line} {dotted(one.loc)}".rstrip(), fix=one.fix)
        for line, one in placed
    )
    first.others = tuple(others)
    return first


def _line(node: yaml.Node | None, loc: Loc) -> int:
    """Return the line, from 1, of a key, or of the nearest enclosing key that exists."""
    line = node.start_mark.line + 1 if node else 1
    for step in loc:
        children = (
            (n if key is None else key.value, key or child, child) for n, (key, child) in enumerate(_children(node))
        )
        found = next(((place, child) for name, place, child in children if name == step), None)
        if found is None:
            return line
        line, node = found[0].start_mark.line + 1, found[1]
    return line


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
