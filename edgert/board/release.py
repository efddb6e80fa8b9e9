"""Which Jetson Linux (L4T) a system is, and the JetPack that belongs to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from edgert.board.host import read_text

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
            return _version_of(package, lines)
    except OSError:
        return ""


def _version_of(package: str, lines: Iterator[str]) -> str:
    """The version in a package's paragraph of dpkg's status file."""
    for line in lines:
        if line.rstrip() == f"Package: {package}":
            paragraph = takewhile(str.strip, lines)
            versions = (entry.split()[1] for entry in paragraph if entry.startswith("Version: "))
            return next(versions, "")
    return ""
