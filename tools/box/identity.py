"""Identity of a box as a certain Jetson: the files that identify it, and those of its meters and clocks.

They are those of the tests, written from edgert's board file. The files of /proc cannot be written, so they lie in a
folder that the emulator looks into first (``QEMU_LD_PREFIX``); without it, a box shows what a container shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgert.board.devices import ARGUS_SOCKET
from edgert.board.record import Board, board
from tests.helpers import sysfs
from tests.unit.board import tree

BARE, HIDDEN = "/jetson", "/container"
"""Folders of /proc: with the device tree, and without it, as Docker hides it."""
SENSOR = "vi-output, imx219 9-0010"
_SOC = {"tegra234": 35, "tegra264": 38}  # include/soc/tegra/fuse.h of Linux: 0x23, 0x26
_TENSORRT_13 = "10.13.3.9-1+cuda13.0"
_REFUSED = ("-DCUDA_BUFFERS=0",)  # an Orin's library of JetPack 7 has NvBufSurfaceMapCudaBuffer, and refuses it
_CUDA_MEMORY = ("-DCUDA_BUFFERS=1", "-DMEMORY=CUDA_DEVICE")  # Thor's video memory is CUDA's own
_CORE = {"tegra234": "0xd42", "tegra264": "0xd83"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a Jetson; ``tensorrt`` is the version whose names the double has, ``surface`` how it is compiled."""

    board: str
    tree: str
    jetpack: str
    python: str
    tensorrt: str
    package: str
    cuda: int
    surface: tuple[str, ...] = ()

    @property
    def record(self) -> Board:
        return board(self.board)

    @property
    def mode(self) -> str:
        return self.record.modes[0].name


IDENTITIES = {
    one.board: one
    for one in (
        Identity("orin-nx-16gb", "orin-nx-jp6", "6.2", "3.10", "10.3", "10.3.0.30-1+cuda12.5", 12060),
        Identity("agx-orin-64gb", "agx-orin-jp7", "7.2", "3.12", "10.13", _TENSORRT_13, 13020, _REFUSED),
        Identity("thor-t5000", "thor", "7.1", "3.12", "10.13", _TENSORRT_13, 13000, _CUDA_MEMORY),
    )
}


def write(one: Identity, upper: Path) -> None:
    """Write the files of a Jetson into a root file system."""
    made, found = one.record, upper / BARE.strip("/")
    planted = sysfs.plant(upper, one.tree)
    cores, memory_kib = made.cpu.cores, (made.memory.usable_bytes or made.memory.bytes) // 1024
    soc = planted.compatible.rpartition("nvidia,")[2].strip("\0")
    core = tree.ARM_CORE.replace("BogoMIPS\t: 62.50\n", "")
    for folder in (found, upper / HIDDEN.strip("/")):
        tree.write(folder, "proc/meminfo", f"MemTotal: {memory_kib} kB\nMemAvailable: {memory_kib // 2} kB\n")
        text = "".join(core.format(n=number, maker="0x41", part=_CORE[soc]) for number in range(cores))
        tree.write(folder, "proc/cpuinfo", text)
    tree.write(found, "proc/device-tree/compatible", planted.compatible + "\0")
    tree.write(found, "proc/device-tree/model", f"NVIDIA {made.title}\0")
    for kind in ("online", "present", "possible"):
        tree.write(upper, f"sys/devices/system/cpu/{kind}", f"0-{cores - 1}\n")
    for name, text in (("family", "Tegra"), ("machine", f"NVIDIA {made.title}"), ("soc_id", str(_SOC[soc]))):
        tree.write(upper, f"sys/devices/soc0/{name}", f"{text}\n")
    tree.nvpmodel(upper, tuple(mode.name for mode in made.modes))
    for path, text in (("sys/class/video4linux/video0/name", SENSOR), ("dev/video0", ""), (ARGUS_SOCKET, "")):
        tree.write(upper, path, text)
    (upper / "tmp").chmod(0o1777)
    # plant() writes the whole /proc of a tree; here a true one is mounted
    for path in ("proc/device-tree/compatible", "proc/meminfo"):
        (upper / path).unlink()
    (upper / "proc/device-tree").rmdir()
