"""Readings of meters, each measured, modeled or unavailable, and the kernel's small files that they come from."""

import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["measured", "modeled", "unavailable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or why there is none; what could not be read is never 0.

    Attributes:
        value: in ``unit``; None exactly when ``kind`` is ``unavailable``.
        unit: ``W``, ``Hz``, ``%``, ``C``, ``B``, ``cores``; empty for a count.
        kind: whether hardware measured it, a model computed it, or neither.
        source: the file, library or model; for ``unavailable``, where it was searched.
        why: for ``unavailable``, the reason; else a remark, or empty.

    Raises:
        ValueError: value and kind contradict each other, or the value is not finite.
    """

    value: float | None
    unit: str
    kind: Kind
    source: str
    why: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.kind == "unavailable"):
            raise ValueError(f"a reading that is {self.kind} with value {self.value}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a reading of {self.value}")

    @property
    def is_known(self) -> bool:
        """Whether there is a value, measured or modeled."""
        return self.value is not None


def measured(value: float, unit: str, source: str, why: str = "") -> Reading:
    """Return a value of hardware or kernel; raise ValueError when it is not finite."""
    return Reading(value, unit, "measured", source, why)


def modeled(value: float, unit: str, source: str, why: str = "") -> Reading:
    """Return a modeled value in place of a meter's; raise ValueError when it is not finite."""
    return Reading(value, unit, "modeled", source, why)


def unavailable(unit: str, source: str, why: str) -> Reading:
    """Return a reading without value, and why."""
    return Reading(None, unit, "unavailable", source, why)


Gauge = Callable[[], Reading]
"""Function that reads one value; it never raises and does not block."""


class Meter(Protocol):
    """Reader of several values that belong together."""

    def read(self) -> Mapping[str, Reading]:
        """Return name → reading, the same names each time; never raises: what cannot be read is ``unavailable``."""
        ...


@dataclass(frozen=True, slots=True)
class Gauges:
    """Gauges by name as one :class:`Meter`."""

    by_name: Mapping[str, Gauge]

    def read(self) -> Mapping[str, Reading]:
        """Read every gauge; see :meth:`Meter.read`."""
        return {name: gauge() for name, gauge in self.by_name.items()}


_MOST_BYTES = 4096  # a sysfs file is one page: https://docs.kernel.org/filesystems/sysfs.html
GONE, SWITCHED_OFF, NO_TIME = "not there", "switched off", "no time has passed"
"""Reasons for no value. The last two are normal: a gated block, and a rate read twice at the same time."""
_TROUBLE = {
    errno.ENOENT: GONE,
    errno.EACCES: "needs root",
    errno.EPERM: "needs root",
    errno.EAGAIN: SWITCHED_OFF,  # thermal zones of gated blocks return this
    errno.EINVAL: SWITCHED_OFF,
    errno.ENODATA: SWITCHED_OFF,  # hwmon: a channel that is not enabled
    errno.ENODEV: "its device is gone",
    errno.ENXIO: "its device is gone",
    errno.EIO: "its device does not answer",
}


def read_number(path: str, low: float = float("-inf"), high: float = float("inf")) -> float:
    """Return the one number in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no number, or outside ``low`` to ``high``, the sensor's possible range.
    """
    text = read_small(path)
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"it reads {text.strip()[:40]!r}, which is no number") from None
    if not low <= value <= high:
        raise ValueError(f"it reads {value:g}, which is impossible (limits {low:g} to {high:g})")
    return value


def read_small(path: str) -> str:
    """Return a page of a file; raise OSError when it cannot be read.

    It takes a third of the time of Path.read_text, which matters to a meter that reads fifty files.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def failure_of(error: OSError | ValueError) -> str:
    """Return the reason of an error in a few words."""
    if isinstance(error, OSError):
        return _TROUBLE.get(error.errno or 0, error.strerror or "cannot be read")
    return str(error)


def shown_path(path: Path | str, root: Path) -> str:
    """Return a path as the machine under ``root`` shows it."""
    return "/" + os.path.relpath(path, root)


def children(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder, by name; nothing where it cannot be listed."""
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def gauge(unit: str, source: str, value: Callable[[], float]) -> Gauge:
    """Return a gauge of the result of ``value``, in ``unit``; unavailable where it raises OSError or ValueError."""

    def read() -> Reading:
        try:
            return measured(value(), unit, source)
        except (OSError, ValueError) as error:
            return unavailable(unit, source, failure_of(error))

    return read


def file_gauge(
    path: Path, root: Path, unit: str, scale: float = 1.0, low: float = 0.0, high: float = float("inf")
) -> Gauge:
    """Return a gauge of a file below ``root``, whose number times ``scale`` is in ``unit``, ``low`` to ``high``."""
    name, least, most = str(path), low / scale, high / scale
    return gauge(unit, shown_path(path, root), lambda: read_number(name, least, most) * scale)
