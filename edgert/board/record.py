"""Boards as data: one YAML file each, in ``configs/boards`` or the user's own, every number with its source."""

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
from edgert.board.consistency import Loc, Mistake, contradictions, dotted, typed
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
"""Transfers of a double data rate memory in each clock of its controller (JEDEC JESD209)."""
_EXAMPLE = "orin-nx-16gb"


class DefaultMode(Sourced):
    """The power mode, by ``name``, that a freshly installed system boots into."""

    name: Text


class Board(Part):
    """A Jetson module, or a board of the user's own; immutable.

    Its ``name`` is the value of ``board:`` and ``--board``, and the name of its file.

    Attributes:
        match: how a running system is recognized as this board; None: it never is.
        encoder: of video; None where the file does not mention it.
        advertised: the speed on the box; None where there is none in INT8.
        idle: readings of the module's watts while nothing ran; empty: not known.
        modes: power modes, as ``nvpmodel`` lists them.
        default_mode: the one it boots into; None where that is unknown.
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
        """Statement that edgert itself cannot run on this board, and why; empty where it can."""
        why = self.jetpack.no_edgert
        return f"edgert itself does not run on a {self.title}: {why}" if why else ""

    def mode(self, name: str) -> Mode:
        """Return the power mode of that name; case and the prefix ``MODE_`` of some boards do not matter.

        Raises:
            ConfigError: this board has none of that name; the error lists those it has.
        """
        found = self._mode(name)
        if found is None:
            names = [mode.name for mode in self.modes]
            hint = nearest(name.upper(), names)
            raise ConfigError(f"{self.name} has no power mode {name!r}{hint}", fix=f"modes: {', '.join(names)}")
        return found

    def has_mode(self, name: str) -> bool:
        """Return whether :meth:`mode` finds one of that name."""
        return self._mode(name) is not None

    def _mode(self, name: str) -> Mode | None:
        wanted = _bare(name)
        return next((mode for mode in self.modes if _bare(mode.name) == wanted), None)

    @property
    def usual_mode(self) -> Mode:
        """Mode it boots into; where that is unknown, the first whose clocks are all known, or else the first."""
        if self.default_mode is not None:
            return self.mode(self.default_mode.name)
        return next((mode for mode in self.modes if not mode.unknown), self.modes[0])

    @property
    def peak_mode(self) -> Mode:
        """Mode with everything on, at the fastest clocks of its sections.

        It is what a box advertises; ``nvpmodel`` may have no such mode, and power may not suffice for it.
        """
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
        """Return the watts of the module in a mode while nothing runs: the mean of the readings.

        Args:
            mode: of power, of this board.
            clocks: of which readings; None: the mean of both kinds, as governors move the clocks with the load.
        """
        if clocks is None:
            both = [found for found in (self.idle_w(mode, "down"), self.idle_w(mode, "up")) if found is not None]
            return sum(both) / len(both) if both else None
        lines = [line for line in self.idle if line.clocks == clocks]
        own = [line.watts for line in lines if mode.name in line.modes]
        every = own or [line.watts for line in lines if not line.modes]
        return sum(every) / len(every) if every else None

    # Peak speeds of the board: what clocks, units and bus allow at most. No workload reaches these numbers. None means
    # unknown: a clock or a rate that nobody has published, or a unit that the board lacks.

    def bandwidth_gb_s(self, mode: Mode) -> float | None:
        """Return the DRAM bandwidth in 10⁹ bytes per second: clock × 2 transfers × width of the bus."""
        return None if mode.emc_mhz is None else mode.emc_mhz * _TRANSFERS * self.memory.bus_bits / 8 / 1000

    def gpu_tops(self, mode: Mode, precision: Precision) -> float | None:
        """Return dense 10¹² operations per second of the SMs that are on.

        None also without a fast path for the precision.
        """
        rate = getattr(self.gpu.ops_per_clock, precision)
        if rate is None or mode.sms is None or mode.gpu_mhz is None:
            return None
        return float(rate * mode.sms * mode.gpu_mhz / 1e6)

    def dla_tops(self, mode: Mode, precision: Precision, core: int = 0) -> float | None:
        """Return dense 10¹² operations per second of one DLA core.

        None for FP32, which no DLA supports, and without that core.
        """
        rate = getattr(self.dla.ops_per_clock, precision, None)
        clock_mhz = mode.dla_clock_mhz(core)
        return None if rate is None or clock_mhz is None else float(rate * clock_mhz / 1e6)


def load_board(path: Path) -> Board:
    """Read one board file.

    Raises:
        ConfigError: unreadable, not YAML, an unknown or missing key, a missing or impossible number, or a name that is
            not its file's. It is the first mistake, with all the others in ``others``.
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
    record, wrong = None, [*_twice(node, (), set()), *contradictions(data)]
    try:
        record = Board.model_validate(data)
    except ValidationError as error:
        wrong += [typed(item, Board) for item in error.errors(include_url=False)]
    if isinstance(data, dict) and isinstance(data.get("name"), str) and data["name"] != path.stem:
        wrong.append(Mistake(("name",), f"board file has name: {data['name']!r}", fix=f"name: {path.stem}"))
    if record is None or wrong:
        raise _error(path, node, wrong)
    return record


def boards() -> tuple[Board, ...]:
    """Return all boards that edgert knows, by name; raise ConfigError when one of their files is damaged."""
    return tuple(map(_shipped, board_names()))


@lru_cache(maxsize=1)
def board_names() -> tuple[str, ...]:
    """Return the names of all boards that edgert knows."""
    return tuple(sorted(path.stem for path in data_folder("configs").glob("boards/*.yaml")))


def board(name: str) -> Board:
    """Return the board of that name; raise ConfigError for an unknown one.

    The error suggests boards with all the words of an incomplete name, as in NVIDIA's "Jetson Orin Nano"; otherwise the
    nearest name.
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
    """Return the board that ``board:`` or ``--board`` means: a name, or a YAML file.

    Args:
        text: a path if it ends in ``.yaml`` or ``.yml`` or contains a slash, otherwise a name.
        directory: what a path is relative to; where no such file exists, the current folder.

    Raises:
        ConfigError: no such board, or something is wrong with its file.
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
    """Return the file of a board, whether or not it exists; arguments and errors are those of :func:`find_board`."""
    if not _is_path(text):
        return data_folder("configs") / "boards" / f"{board(text).name}.yaml"
    path = Path(text).expanduser()
    there = directory / path
    return path if not there.exists() and path.exists() else there


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text


def _bare(name: str) -> str:
    return name.strip().lower().removeprefix("mode_")


def _twice(node: yaml.Node | None, loc: Loc, visited: set[int]) -> Iterator[Mistake]:
    """Yield keys that are defined twice, of which YAML's reader would silently use the second.

    An alias is visited once.
    """
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
        yield from _twice(child, (*loc, name), visited)


def _children(node: yaml.Node | None) -> Iterator[tuple[yaml.Node | None, yaml.Node]]:
    """Yield key and value of each entry of a mapping or list; those of a list have no key."""
    if isinstance(node, yaml.MappingNode):
        yield from node.value
    elif isinstance(node, yaml.SequenceNode):
        yield from ((None, child) for child in node.value)


def _error(path: Path, node: yaml.Node | None, wrong: Iterable[Mistake]) -> ConfigError:
    """Return all mistakes as one error, in the order of the file."""
    placed = sorted(((_line(node, mistake.loc), mistake) for mistake in wrong), key=lambda pair: pair[0])
    first, *others = (
        ConfigError(one.what, why=one.why, where=f"{path}:{line} {dotted(one.loc)}".rstrip(), fix=one.fix)
        for line, one in placed
    )
    first.others = tuple(others)
    return first


def _line(node: yaml.Node | None, loc: Loc) -> int:
    """Return the line of a key, or of the nearest enclosing one that was written, counted from 1."""
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


# Data sheet: every number of a board's file, what follows from it, and its source.

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_ABOUT = frozenset(Sourced.model_fields)
_MAXIMUM = {"cpu_mhz": "cpu", "gpu_mhz": "gpu", "dla_mhz": "dla", "emc_mhz": "memory"}
"""Section whose maximum a mode's clock has where the mode does not limit it."""


@dataclass(frozen=True, slots=True)
class Number:
    """An entry of a board file and its source; ``key`` like ``gpu.max_mhz`` or ``modes.15W.gpu_mhz``."""

    key: str
    value: Any
    origin: Origin


def data_sheet(board: Board) -> dict[str, Any]:
    """Return a board as plain data for JSON: its file, with the speeds of each mode and of its maxima.

    None is unknown.
    """
    data: dict[str, Any] = board.model_dump(mode="json")
    for mode, plain in zip(board.modes, data["modes"], strict=True):
        plain["derived"] = speeds(board, mode)
    data["derived"] = speeds(board, board.peak_mode)
    return data


def speeds(board: Board, mode: Mode) -> dict[str, Any]:
    """Return bandwidth and dense TOPS in a mode; those of the DLA one for each core."""
    cores = range(mode.dla_cores)
    return {
        "bandwidth_gb_s": board.bandwidth_gb_s(mode),
        "gpu_tops": {precision: board.gpu_tops(mode, precision) for precision in PRECISIONS},
        "dla_tops": {p: [board.dla_tops(mode, p, core) for core in cores] for p in PRECISIONS if p != "fp32"},
    }


def numbers(board: Board) -> Iterator[Number]:
    """Yield every entry of a board that has a source, in the order of its file; what a board lacks has no entries."""
    for name in type(board).model_fields:
        section = getattr(board, name)
        if isinstance(section, Sourced):
            yield from (Number(f"{name}.{key}", value, section.origin(key)) for key, value in _entries(board, section))
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
        if key not in _ABOUT and key not in ("uncapped", "estimated") and not absent:
            value = getattr(section, key)
            yield key, value.model_dump() if isinstance(value, Part) else value
