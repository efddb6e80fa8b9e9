"""Detection of the board, its chip, and its releases of Jetson Linux and JetPack.

The device tree's ``compatible`` names module and carrier, as in ``nvidia,p3768-0000+p3767-0000-super``. Its ``model``
names the kit, but makers of carriers change it, so it is only shown. Modules with the same device tree differ in
memory. See https://docs.kernel.org/devicetree/usage-model.html.

Docker hides the device tree, because it masks ``/sys/firmware``. Then chip number, cores and memory together identify a
module. ``EDGERT_BOARD`` overrides detection.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.board import devices, nvpmodel
from edgert.board.host import cpu_name, online_cores, present_cores, read_text, system_memory
from edgert.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from edgert.board.record import Board
    from edgert.board.sections import Variant


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
"""JetPack by release of L4T, from https://developer.nvidia.com/embedded/jetpack-archive."""
_MAJOR = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}


def l4t_version(root: Path = Path("/")) -> str:
    """Return the release of Jetson Linux, such as ``"36.4.3"``, from its file or its package; empty for none."""
    match = _RELEASE.search(read_text(root / "etc/nv_tegra_release"))
    return ".".join(match.groups()) if match else package_version("nvidia-l4t-core", root).partition("-")[0]


def jetpack_of(l4t: str) -> str:
    """Return the JetPack of a release, such as ``"6.2"`` for ``"36.4.3"``; empty for none.

    It is ``"6.2.2 or later"`` for a release newer than those in the table, and ``"6.x"`` for an older one.
    """
    exact = _JETPACK.get(l4t) or _JETPACK.get(l4t.rpartition(".")[0])
    family = _MAJOR.get(l4t.partition(".")[0])
    if exact or not family:
        return exact or ""
    known = (one for one in _JETPACK if _MAJOR[one.partition(".")[0]] == family)
    older = max((one for one in known if _numbers(one) < _numbers(l4t)), key=_numbers, default="")
    return f"{_JETPACK[older]} or later" if older else f"{family}.x"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", release)))


def package_version(package: str, root: Path = Path("/")) -> str:
    """Return the version of a Debian package, such as ``"36.4.7-20250918154033"``; empty if not installed."""
    try:
        status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The file has megabytes, so it is searched as one text instead of line by line.
    paragraph = f"\n{status}".partition(f"\nPackage: {package}\n")[2].partition("\n\n")[0]
    lines = (line.removeprefix("Version: ") for line in paragraph.splitlines() if line.startswith("Version: "))
    return next(lines, "").strip()


HOST = "host"
"""Name of a machine that is not a Jetson."""
THIS_MACHINE = ("auto", HOST)
"""Values of ``board:`` that mean this machine; ``host`` is only its CPU."""
UNKNOWN = "jetson"
"""Name of a Jetson without a board file."""
DEVICE_TREE = "its device tree"
VARIABLE = "EDGERT_BOARD"
"""Environment variable that names the board; it overrides detection."""
_CHIPS = {"33": "tegra210", "24": "tegra186", "25": "tegra194", "35": "tegra234", "38": "tegra264"}
"""Number in /sys/devices/soc0/soc_id → chip, from include/soc/tegra/fuse.h of Linux: 0x21, 0x18, 0x19, 0x23, 0x26."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that edgert runs on; texts are empty where unknown.

    Attributes:
        name: name of its board, ``host`` for a machine that is not a Jetson, or ``jetson`` for an unknown Jetson.
        model: name in the device tree.
        compatible: identifiers in the device tree, the most specific first.
        cores: number of cores that are on.
        memory_bytes: memory that the kernel manages.
        mode_trouble: why the power mode of the machine is unknown.
        known_by: what identified the board.
        soc: chip such as ``tegra234``; empty for ``host``.
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
    known_by: str = ""
    soc: str = ""

    @property
    def is_jetson(self) -> bool:
        """Whether this is a Jetson, known or not."""
        return self.name != HOST

    @property
    def variant(self) -> Variant | None:
        """Module of this machine if :attr:`board` is the record of a similar module; otherwise None."""
        match, words = self.board.match if self.board is not None else None, _words(self.compatible)
        return next((one for one in match.variants if one.word in words), None) if match is not None else None

    @property
    def has_desktop_nvdec(self) -> bool:
        """Whether the GPU's decoder is used through the Video Codec SDK, as on a desktop.

        The only Jetson in its list is a Thor:
        https://docs.nvidia.com/video-technologies/video-codec-sdk/13.0/read-me/index.html.
        """
        thor_only = not self.soc and self.l4t.startswith("38.")  # a container may hide the chip
        return not self.is_jetson or self.soc == devices.THOR or thor_only

    @property
    def why_no_dla(self) -> str:
        """Reason why nothing can run on a DLA of this machine; empty if it can."""
        if self.board is None or not self.board.dla.cores:
            return f"{self.board.title if self.board else self.name} has no DLA"
        if self.mode in [mode.name for mode in self.board.modes if not mode.dla_cores]:
            return f"power mode {self.mode} turns the DLA off: sudo nvpmodel -m NUMBER sets another"
        return ""


def detect(root: Path = Path("/")) -> Machine:
    """Return the machine whose file system is under ``root``; this needs no rights and opens no device.

    Raises ConfigError where ``EDGERT_BOARD`` names no board.
    """
    compatible, memory_bytes = _compatible(root), system_memory(root).total_bytes
    jetson = is_jetson(root)
    board, known_by = _recognize(root, compatible, memory_bytes) if jetson else (None, "")
    l4t = l4t_version(root)
    mode, mode_trouble = "", ""
    try:
        mode = nvpmodel.current_mode(root) if jetson else ""
    except DeviceError as error:  # a damaged file must not hide the rest of the machine
        mode_trouble = f"{error.what}: {error.why}"
    return Machine(
        name=board.name if board else UNKNOWN if jetson else HOST,
        board=board,
        model=_model(root),
        compatible=compatible,
        l4t=l4t,
        jetpack=jetpack_of(l4t),
        cpu=cpu_name(root),
        cores=online_cores(root),
        cores_present=present_cores(root),
        memory_bytes=memory_bytes,
        mode=mode,
        mode_trouble=mode_trouble,
        known_by=known_by,
        soc=board.soc if board else _soc(root, compatible),
    )


def is_jetson(root: Path = Path("/")) -> bool:
    """Return whether this is a Jetson, known or not, faster than :func:`detect`."""
    shown = (word.startswith("nvidia,tegra") for word in _compatible(root))
    return bool(os.environ.get(VARIABLE)) or any(shown) or bool(_chip(root)) or bool(l4t_version(root))


def _compatible(root: Path) -> tuple[str, ...]:
    return tuple(filter(None, read_text(root / "proc/device-tree/compatible").split("\0")))


def _model(root: Path) -> str:
    return read_text(root / "proc/device-tree/model") or read_text(root / "sys/devices/soc0/machine").strip()


def _chip(root: Path) -> str:
    """Return the chip, such as ``tegra234``, from the kernel's driver of its fuses; empty on other machines."""
    soc = root / "sys/devices/soc0"
    return _CHIPS.get(read_text(soc / "soc_id").strip(), "") if read_text(soc / "family").strip() == "Tegra" else ""


def _soc(root: Path, compatible: tuple[str, ...]) -> str:
    """Return the chip from the device tree or the fuses; empty if unknown."""
    named = (word.removeprefix("nvidia,") for word in compatible if word.startswith("nvidia,tegra"))
    return next(named, "") or _chip(root)


def _recognize(root: Path, compatible: tuple[str, ...], memory_bytes: int) -> tuple[Board | None, str]:
    from edgert.board.record import board, boards

    if name := os.environ.get(VARIABLE):
        try:
            return board(name), VARIABLE
        except ConfigError as error:
            raise ConfigError(
                f"no board {name!r}", why=error.why, where=VARIABLE, fix="use a name that edgert boards lists"
            ) from error
    modes = _mode_names(root)
    if compatible:
        found, known_by = _by_name(boards(), compatible, memory_bytes, modes), DEVICE_TREE
        plain = found and _by_name(boards(), compatible, memory_bytes, frozenset())
    else:
        found, known_by = _by_hardware(boards(), root, memory_bytes, modes), "its chip, cores and memory"
        plain = found and _by_hardware(boards(), root, memory_bytes, frozenset())
    if found is not plain:
        known_by += " and power modes"
    return found, known_by if found else ""


def _mode_names(root: Path) -> frozenset[str]:
    """Return the names of nvpmodel's power modes.

    The result is empty if the file is missing or damaged, or has only one mode, as users' own files do.
    """
    try:
        found = nvpmodel.power_modes(root)
    except DeviceError:  # detect() reports it with the power mode
        return frozenset()
    return frozenset(found.names.values()) if found is not None and len(found.names) > 1 else frozenset()


def _by_hardware(known: tuple[Board, ...], root: Path, memory_bytes: int, modes: frozenset[str]) -> Board | None:
    """Return the board with this machine's chip, cores and memory; None if several different modules match."""
    chip, cores, model = _chip(root), present_cores(root), _model(root).lower()
    alike = [one for one in known if one.soc == chip and one.cpu.cores == cores]
    named = [one for one in alike if _module(one.title) in model]
    found = _fitting(named or alike, "super" in model, memory_bytes, modes)
    twins = {(one.gpu.sms, one.dla.cores) for one in named or alike if found and one.memory.bytes == found.memory.bytes}
    return found if len(twins) == 1 else None


def _module(title: str) -> str:
    """Return the module of a title, such as ``orin nx`` for ``Jetson Orin NX 16GB Super``."""
    return re.sub(r"^jetson | \d+gb.*$", "", title.lower())


def _words(compatible: tuple[str, ...]) -> set[str]:
    """Return the words of identifiers, such as ``p3767-0000-super`` of ``nvidia,p3768-0000+p3767-0000-super``."""
    return {word for entry in compatible for word in re.split(r"[,+]", entry)}


def _by_name(
    known: tuple[Board, ...], compatible: tuple[str, ...], memory_bytes: int, modes: frozenset[str]
) -> Board | None:
    words = _words(compatible)
    plain = {word.removesuffix("-super") for word in words}
    named = [one for one in known if one.match is not None and plain & one.match.words]
    return _fitting(named, any(word.endswith("-super") for word in words), memory_bytes, modes)


def _fitting(named: list[Board], fast: bool, memory_bytes: int, modes: frozenset[str]) -> Board | None:
    """Return the board, among those that share a name, that fits firmware and memory.

    Boards with or without Super firmware are selected first, and then the smallest with enough memory. Carriers of
    other makers may have the power modes of Super firmware on a device tree without ``-super``. So the boards with more
    of ``modes``, the names in nvpmodel's file, are selected. The device tree decides if both have as many."""
    shared = {True: -1, False: -1}
    for one in named:
        if one.match is not None:
            count = len(modes.intersection(mode.name for mode in one.modes))
            shared[one.match.super] = max(shared[one.match.super], count)
    fast = fast if shared[True] == shared[False] else shared[True] > shared[False]
    found = [one for one in named if one.match is not None and one.match.super == fast] or named
    large = [board for board in found if board.memory.bytes >= memory_bytes]
    if large:
        return min(large, key=lambda board: board.memory.bytes)
    return max(found, key=lambda board: board.memory.bytes, default=None)
