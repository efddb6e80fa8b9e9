"""Which board this machine is, and which release of Jetson Linux and JetPack it runs.

The device tree's ``compatible`` names module and carrier, ``nvidia,p3768-0000+p3767-0000-super``; its ``model`` names
the kit and is changed by makers of carriers, so it is only shown. Modules that share a device tree differ by their
memory. See https://docs.kernel.org/devicetree/usage-model.html.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.board.host import cpu_name, online_cores, present_cores, read_text, system_memory
from edgert.board.nvpmodel import current_mode
from edgert.errors import DeviceError

if TYPE_CHECKING:
    from edgert.board.record import Board


# Which Jetson Linux (L4T) a system is, and the JetPack that belongs to it.

_RELEASE = re.compile(r"R(\d+) \(release\), REVISION: ([\d.]+)")
_JETPACK = {
    "39.2.0": "7.2",
    "38.4.0": "7.1",
    "38.2": "7.0",
    "36.5.0": "6.2.2",
    "36.4.7": "6.2.1",
    "36.4.4": "6.2.1",
    "36.4.3": "6.2",
    "36.4.2": "6.1",
    "36.4.0": "6.1",
    "36.3.0": "6.0",
    "35.6.4": "5.1.6",
    "35.6.3": "5.1.5",
    "35.6.2": "5.1.5",
    "35.6.1": "5.1.5",
    "35.6.0": "5.1.4",
    "35.5.0": "5.1.3",
    "35.4.1": "5.1.2",
    "35.3.1": "5.1.1",
    "35.2.1": "5.1",
    "35.1.0": "5.0.2",
    "34.1.1": "5.0.1",
    "32.7.6": "4.6.6",
    "32.7.1": "4.6.1",
    "32.6.1": "4.6",
    "32.5.1": "4.5.1",
}
"""L4T → JetPack, from https://developer.nvidia.com/embedded/jetpack-archive."""
_MAJOR = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}


def l4t_version(root: Path = Path("/")) -> str:
    """``"36.4.3"``, from ``/etc/nv_tegra_release`` or the package that brings it; empty where there is neither."""
    match = _RELEASE.search(read_text(root / "etc/nv_tegra_release"))
    return ".".join(match.groups()) if match else package_version("nvidia-l4t-core", root).partition("-")[0]


def jetpack_of(l4t: str) -> str:
    """``"6.2"`` for ``"36.4.3"``; ``"6.x"`` for a release of that family not in the table; empty for none."""
    family = _MAJOR.get(l4t.partition(".")[0])
    exact = _JETPACK.get(l4t) or _JETPACK.get(l4t.rpartition(".")[0])
    return exact or (f"{family}.x" if family else "")


def package_version(package: str, root: Path = Path("/")) -> str:
    """``"36.4.7-20250918154033"`` of an installed Debian package; empty where it is not installed, or none ever was."""
    try:
        with (root / "var/lib/dpkg/status").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.rstrip() == f"Package: {package}":
                    paragraph = takewhile(str.strip, lines)
                    versions = (entry.split()[1] for entry in paragraph if entry.startswith("Version: "))
                    return next(versions, "")
    except OSError:
        return ""
    return ""


HOST = "host"
"""Name of a machine that is no Jetson."""
UNKNOWN = "jetson"
"""Name of a Jetson that no board file describes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine edgert runs on.

    Attributes:
        name: of its board, or ``host``, or ``jetson`` for an unknown one.
        board: its record; None for ``host`` and ``jetson``.
        model: what the device tree calls it; may be empty.
        compatible: the device tree's words for it, the most exact first.
        l4t: release of Jetson Linux; empty if none.
        jetpack: the JetPack of that release; empty if none.
        cpu: the cores' kind.
        cores: cores that are switched on.
        cores_present: cores that there are.
        memory_bytes: what the kernel manages.
        mode: name of the power mode; empty where there is none, or it is unknown.
        mode_trouble: why the power mode is unknown although the machine has one; empty otherwise.
    """

    name: str
    board: Board | None
    model: str
    compatible: tuple[str, ...]
    l4t: str
    jetpack: str
    cpu: str
    cores: int
    cores_present: int
    memory_bytes: int
    mode: str = ""
    mode_trouble: str = ""

    @property
    def is_jetson(self) -> bool:
        """Whether this is a Jetson, known or not."""
        return self.name != HOST


def detect(root: Path = Path("/")) -> Machine:
    """Looks at the machine under ``root``, whose files are those of a running Linux. Needs no rights, opens no device.

    Raises:
        ConfigError: one of edgert's own board files is damaged.
    """
    tree = root / "proc/device-tree"
    compatible = tuple(filter(None, read_text(tree / "compatible").split("\0")))
    memory_bytes = system_memory(root).total_bytes
    l4t = l4t_version(root)
    is_jetson = bool(l4t) or any(word.startswith("nvidia,tegra") for word in compatible)
    board = _recognize(compatible, memory_bytes) if is_jetson else None
    mode, mode_trouble = "", ""
    try:
        mode = current_mode(root) if is_jetson else ""
    except DeviceError as error:  # a damaged file must not keep the rest of the machine from being known
        mode_trouble = f"{error.what}: {error.why}"
    return Machine(
        name=board.name if board else UNKNOWN if is_jetson else HOST,
        board=board,
        model=read_text(tree / "model"),
        compatible=compatible,
        l4t=l4t,
        jetpack=jetpack_of(l4t),
        cpu=cpu_name(root),
        cores=online_cores(root),
        cores_present=present_cores(root),
        memory_bytes=memory_bytes,
        mode=mode,
        mode_trouble=mode_trouble,
    )


def _recognize(compatible: tuple[str, ...], memory_bytes: int) -> Board | None:
    """The board that a system calls itself; of several, the smallest that has so much memory."""
    from edgert.board.record import boards

    words = {word for entry in compatible for word in re.split(r"[,+]", entry)}
    plain = {word.removesuffix("-super") for word in words}
    matches = [(board, board.match) for board in boards() if board.match is not None]
    matches = [(board, match) for board, match in matches if plain.intersection(match.compatible)]
    fast = any(word.endswith("-super") for word in words)
    found = [board for board, match in matches if match.super == fast] or [board for board, _ in matches]
    large = [board for board in found if board.memory.bytes >= memory_bytes]
    if large:
        return min(large, key=lambda board: board.memory.bytes)
    return max(found, key=lambda board: board.memory.bytes, default=None)
