"""The CPU as the kernel describes it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from edgert.board.host import read_text

_FIELD = re.compile(r"^([\w ]+?)\s*:\s*(.*)$", re.MULTILINE)
_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""Implementer and part number of Arm's MIDR_EL1, from Linux, arch/arm64/include/asm/cputype.h."""


def cpu_name(root: Path = Path("/")) -> str:
    """``"Cortex-A78AE"``, ``"Intel(R) Xeon(R) …"``; the architecture where the kernel says no more."""
    fields = _FIELD.findall(read_text(root / "proc/cpuinfo"))
    arms = _arm_names(fields)
    names = [value for key, value in fields if key == "model name"]
    return " + ".join(arms) or (names[0] if names else platform.machine())


def saturates_bytes(root: Path = Path("/")) -> bool:
    """Whether this is an x86 processor without VNNI: it adds pairs of products of uint8 and int8 in 16 bits, which
    overflow (Intel's manual, VPMADDUBSW)."""
    fields = _FIELD.findall(read_text(root / "proc/cpuinfo"))
    flags: set[str] = {flag for key, value in fields if key == "flags" for flag in value.split()}
    return bool(flags) and not {"avx512_vnni", "avx_vnni"} & flags


def _arm_names(fields: list[tuple[str, str]]) -> list[str]:
    makers = [value for key, value in fields if key == "CPU implementer"]
    parts = [value for key, value in fields if key == "CPU part"]
    names = (_PARTS.get(pair) for pair in zip(makers, parts, strict=False))
    return list(dict.fromkeys(name for name in names if name))


def online_cores(root: Path = Path("/")) -> int:
    """Cores that are switched on; a Jetson's power mode switches some off."""
    return _listed(root / "sys/devices/system/cpu/online") or os.cpu_count() or 1


def present_cores(root: Path = Path("/")) -> int:
    """Cores that there are, switched on or not."""
    return _listed(root / "sys/devices/system/cpu/present") or online_cores(root)


def _listed(path: Path) -> int:
    """How many numbers a list like ``0-3,6`` names; 0 when it cannot be read."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", read_text(path))
    return sum(int(last or first) - int(first) + 1 for first, last in spans)
