"""Power mode of a Jetson, read without special rights and without starting a program.

``nvpmodel`` stores the modes of a board in ``/etc/nvpmodel.conf``, whose header explains its format. The number of the
current mode is in ``/var/lib/nvpmodel/status``. This module returns names, because numbers depend on the file: 0 is
``MAXN`` on one board and ``15W`` on another.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import DeviceError, cause
from edgert.units import whole_number

_CONF = "etc/nvpmodel.conf"
_STATUS = "var/lib/nvpmodel/status"
_MODEL = re.compile(r"\s*<\s*POWER_MODEL\b([^>]*)")
_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)")
_CURRENT = re.compile(r"\bpmode:(\S+)")
_DAMAGED = "the file comes with nvidia-l4t-nvpmodel: apt install --reinstall nvidia-l4t-nvpmodel"
_ASK = "sudo nvpmodel -p --verbose lists the modes, sudo nvpmodel -m NUMBER sets one"


@dataclass(frozen=True, slots=True)
class PowerModes:
    """Power modes in the ``nvpmodel`` file of a path, by number."""

    path: str
    names: dict[int, str]

    def name(self, number: int, where: str) -> str:
        """Return the name of a mode; raise DeviceError for a number, found in ``where``, that the file lacks."""
        if number not in self.names:
            known = ", ".join(f"{number}: {name}" for number, name in self.names.items())
            raise DeviceError(f"no power mode {number} in {self.path}", why=f"it has {known}", where=where, fix=_ASK)
        return self.names[number]


def current_mode(root: Path = Path("/")) -> str:
    """Return the name of the power mode, such as ``"15W"``; empty without nvpmodel or if no mode was ever set.

    Raises DeviceError where a file exists but cannot be read or parsed.
    """
    status, modes = _text(root / _STATUS), power_modes(root)
    if status is None or modes is None:
        return ""
    match = _CURRENT.search(status)
    number = None if match is None else whole_number(match[1])
    if number is None:
        raise DeviceError(
            f"/{_STATUS} does not name the power mode",
            why=f"expected pmode:NUMBER; it has {status.strip()[:60]!r}",
            where=f"/{_STATUS}",
            fix=_ASK,
        )
    return modes.name(number, f"/{_STATUS}")


def power_modes(root: Path = Path("/")) -> PowerModes | None:
    """Return the modes of the machine under ``root``; None without a file, or with several. Raises DeviceError."""
    path = root / _CONF
    if path.is_symlink():  # its target is relative to ``root``
        target = path.readlink()
        path = root / target.relative_to("/") if target.is_absolute() else path.parent / target
    elif not path.exists():  # without the link, only a single file is certain
        others = list((root / "etc/nvpmodel").glob("nvpmodel_*.conf"))
        if len(others) != 1:
            return None
        path = others[0]
    text = _text(path)
    return None if text is None else parse_conf(text, f"/{path.relative_to(root)}")


def parse_conf(text: str, path: str) -> PowerModes:
    """Return the modes that an ``nvpmodel`` file defines. Raises DeviceError: it is damaged."""
    names: dict[int, str] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if (match := _MODEL.match(content)) is None:
            continue
        fields = dict(_FIELD.findall(match[1]))
        number, name = whole_number(fields.get("ID", "")), fields.get("NAME", "")
        if number is None or not name or number in names or name in names.values():
            why, where = f"{content.strip()!r} has no ID=NUMBER and NAME=NAME of its own", f"{path}:{line}"
            raise DeviceError(f"cannot parse {path}", why=why, where=where, fix=_DAMAGED)
        names[number] = name
    if not names:
        raise DeviceError(f"cannot parse {path}", why="the file defines no POWER_MODEL", where=path, fix=_DAMAGED)
    return PowerModes(path, names)


def _text(path: Path) -> str | None:
    """Return the text of a file; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeviceError(f"cannot read {path}", why=cause(error), where=str(path)) from error
