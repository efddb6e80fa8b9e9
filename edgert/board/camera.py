"""Cameras that the kernel knows, without opening them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text


@dataclass(frozen=True, slots=True)
class CameraDevice:
    """A V4L2 device.

    Attributes:
        path: such as ``/dev/video0``.
        title: what it calls itself; may be empty, as in a container without sysfs.
        driver: the kernel driver behind it; may be empty.
        is_readable: whether this user may open it.
    """

    path: str
    title: str
    driver: str
    is_readable: bool


def cameras(root: Path = Path("/")) -> tuple[CameraDevice, ...]:
    """The devices that may give pictures. Of the nodes of one device only the first: the others carry its metadata
    (https://docs.kernel.org/admin-guide/media/uvcvideo.html)."""
    devices = sorted((root / "dev").glob("video*[0-9]"), key=lambda path: (len(path.name), path.name))
    return tuple(_device(device, root) for device in devices if _index(device, root) == 0)


def _device(device: Path, root: Path) -> CameraDevice:
    node = _node(device, root)
    readable = os.access(device, os.R_OK | os.W_OK)
    return CameraDevice(f"/dev/{device.name}", read_text(node / "name"), _driver(node), readable)


def _index(device: Path, root: Path) -> int:
    text = read_text(_node(device, root) / "index")
    return int(text) if text.isdigit() else 0


def _node(device: Path, root: Path) -> Path:
    return root / "sys/class/video4linux" / device.name


def _driver(node: Path) -> str:
    link = node / "device/driver"
    return link.resolve().name if link.exists() else ""
