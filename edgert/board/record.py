"""Boards as data: one YAML file each in ``configs/boards``, every section with the source of its numbers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from edgert.errors import ConfigError, nearest
from edgert.shipped import data_folder
from edgert.units import parse_bytes

_Count = Annotated[int, Field(ge=0)]
_Url = Annotated[str, Field(pattern=r"^https://\S+$")]
_Words = Annotated[tuple[str, ...], Field(min_length=1, strict=False)]  # YAML has lists only
_Numbers = Annotated[tuple[int, ...], Field(min_length=1, strict=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Match(_Section):
    """How a running system is recognised as this board.

    Attributes:
        tells: part numbers and names; one of them stands in the device tree's ``compatible``.
        super: whether the firmware is the faster one, whose device tree says ``-super``.
        source: where that is written.
    """

    tells: _Words
    super: bool
    source: _Url


class Memory(_Section):
    """DRAM that CPU, GPU and DLA share; ``bytes`` is what is soldered on, of which the kernel sees a little less."""

    bytes: Annotated[int, BeforeValidator(parse_bytes)]
    source: _Url


class Gpu(_Section):
    """The GPU: ``compute`` is CUDA's compute capability, ``sms`` its streaming multiprocessors with none gated off."""

    architecture: str
    compute: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    sms: _Count
    source: _Url


class Cpu(_Section):
    """The CPU cores with none switched off by a power mode."""

    model: str
    cores: _Count
    source: _Url


class Dla(_Section):
    """The deep-learning accelerator: generation 1 is Xavier's, 2 is Orin's; None without cores."""

    generation: Annotated[int, Field(ge=1)] | None
    cores: _Count
    source: _Url


class JetPack(_Section):
    """Major releases of JetPack that support the board."""

    majors: _Numbers
    source: _Url


class Board(_Section):
    """A Jetson module. Immutable; ``name`` is what ``board:`` and ``--board`` take, and the name of its file."""

    name: str
    title: str
    soc: str
    match: Match
    memory: Memory
    gpu: Gpu
    cpu: Cpu
    dla: Dla
    jetpack: JetPack


def load_board(path: Path) -> Board:
    """Reads one board file.

    Raises:
        ConfigError: unreadable, not YAML, an unknown or missing key, a wrong value; its name is not its file's.
    """
    record = _parse(path, _read(path))
    if record.name != path.stem:
        raise ConfigError(f"board file {path} calls itself {record.name!r}", fix=f"name: {path.stem}", where=str(path))
    return record


@lru_cache(maxsize=1)
def boards() -> tuple[Board, ...]:
    """All the boards that edgert knows, by name. Raises ConfigError when one of their files is damaged."""
    return tuple(load_board(path) for path in sorted(data_folder("configs").glob("boards/*.yaml")))


def board(name: str) -> Board:
    """The board of that name. Raises ConfigError for an unknown one."""
    known = {record.name: record for record in boards()}
    if name not in known:
        raise ConfigError(f"no board {name!r}{nearest(name, known)}", fix=f"boards: {', '.join(known)}")
    return known[name]


def _read(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read board file {path}", why=str(error)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"board file {path} is not valid YAML", why=str(error)) from error


def _parse(path: Path, data: object) -> Board:
    try:
        return Board.model_validate(data)
    except ValidationError as error:
        found = [_error(path, item["type"], item["loc"], item["msg"]) for item in error.errors()]
        found[0].others = tuple(found[1:])
        raise found[0] from error


def _error(path: Path, kind: str, loc: tuple[int | str, ...], message: str) -> ConfigError:
    key = ".".join(map(str, loc))
    where = f"{path} {key}".rstrip()
    if kind == "extra_forbidden":
        return ConfigError(f"unknown key {key!r} in a board file{nearest(str(loc[-1]), _KEYS)}", where=where)
    return ConfigError(f"wrong value in a board file at {key or 'its top level'}", why=message, where=where)


_KEYS = {key for section in (Board, Match, Memory, Gpu, Cpu, Dla, JetPack) for key in section.model_fields}
