"""Power mode of a Jetson, read without special rights and without starting a program.

``nvpmodel`` stores the modes of a board in ``/etc/nvpmodel.conf``, whose header explains its format. The number of the
current mode is in ``/var/lib/nvpmodel/status``. This module returns names, because numbers depend on the file: 0 is
``MAXN`` on one board and ``15W`` on another.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import DeviceError, cause

_CONF = "etc/nvpmodel.conf"
_STATUS = "var/lib/nvpmodel/status"
_HEADER = re.compile(r"<\s*(POWER_MODEL|PM_CONFIG)\b([^>]*)(>?)")
_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)")
_CURRENT = re.compile(r"\bpmode:(\S+)")
_DAMAGED = "the file comes with nvidia-l4t-nvpmodel: apt install --reinstall nvidia-l4t-nvpmodel"
_ASK = "sudo nvpmodel -p --verbose lists the modes, sudo nvpmodel -m NUMBER sets one"


@dataclass(frozen=True, slots=True)
class PowerModes:
    """Power modes in one ``nvpmodel`` file by number, and the one at the first boot; empty if the file has none."""

    path: str
    names: dict[int, str]
    default: str

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
    if match is None or not _is_number(match[1]):
        raise DeviceError(
            f"/{_STATUS} does not name the power mode",
            why=f"expected pmode:NUMBER; it has {status.strip()[:60]!r}",
            where=f"/{_STATUS}",
            fix=_ASK,
        )
    return modes.name(int(match[1]), f"/{_STATUS}")


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

    def damaged(why: str, where: str) -> DeviceError:
        return DeviceError(f"cannot parse {path}", why=why, where=where, fix=_DAMAGED)

    names: dict[int, str] = {}
    default: tuple[str, str] | None = None
    for line, content in enumerate(map(str.strip, text.splitlines()), 1):
        match, where = _HEADER.match(content), f"{path}:{line}"
        if match is None:  # such as a comment
            continue
        if not match[3]:
            raise damaged(f"{content!r} has no closing >", where)
        fields = dict(_FIELD.findall(match[2]))
        if match[1] == "PM_CONFIG":
            default = (fields.get("DEFAULT", ""), where)
            continue
        number, name = fields.get("ID", ""), fields.get("NAME", "")
        if not _is_number(number) or not name:
            raise damaged("a POWER_MODEL needs ID=NUMBER and NAME=NAME", where)
        if int(number) in names or name in names.values():
            raise damaged(f"power mode ID={number} NAME={name} is defined twice", where)
        names[int(number)] = name
    if not names:
        raise damaged("the file defines no POWER_MODEL", path)
    if default is None:
        return PowerModes(path, names, "")
    number, where = default
    if not _is_number(number) or int(number) not in names:
        raise damaged(f"PM_CONFIG DEFAULT={number} is not one of its modes", where)
    return PowerModes(path, names, names[int(number)])


def _text(path: Path) -> str | None:
    """Return the text of a file; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeviceError(f"cannot read {path}", why=cause(error), where=str(path)) from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
