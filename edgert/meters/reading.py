"""Readings of meters, which are measured, modeled or unavailable, and access to the kernel's small files."""

import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["measured", "modeled", "unavailable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Value of a meter, or the reason why there is none; an unavailable value is never 0.

    Attributes:
        value: value in ``unit``; None exactly if ``kind`` is ``unavailable``.
        unit: ``W``, ``Hz``, ``%``, ``C``, ``B`` or ``cores``; empty for a count.
        source: file, library or model; for an unavailable value, where it was searched.
        why: reason for an unavailable value; otherwise a remark, or empty.
    """

    value: float | None
    unit: str
    kind: Kind
    source: str
    why: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.kind == "unavailable"):
            raise ValueError(f"a reading that is {self.kind} cannot have the value {self.value}")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"a reading cannot have the value {self.value}")

    @property
    def is_known(self) -> bool:
        """Whether there is a value, measured or modeled."""
        return self.value is not None


def measured(value: float, unit: str, source: str, why: str = "") -> Reading:
    """Return a reading of a value from hardware or kernel; raise ValueError if it is not finite."""
    return Reading(value, unit, "measured", source, why)


def modeled(value: float, unit: str, source: str, why: str = "") -> Reading:
    """Return a reading of a modeled value; raise ValueError if it is not finite."""
    return Reading(value, unit, "modeled", source, why)


def unavailable(unit: str, source: str, why: str) -> Reading:
    """Return a reading without a value, with the reason."""
    return Reading(None, unit, "unavailable", source, why)


Gauge = Callable[[], Reading]
"""Function that returns one reading; it never raises and does not block."""


Meter = Callable[[], Mapping[str, Reading]]
"""Function that returns several related readings by name, with the same names each time; it never raises."""


def read_gauges(gauges: Mapping[str, Gauge]) -> dict[str, Reading]:
    """Return all readings by name."""
    return {name: gauge() for name, gauge in gauges.items()}


_MOST_BYTES = 4096  # a sysfs file is one page: https://docs.kernel.org/filesystems/sysfs.html
GONE, SWITCHED_OFF, NO_TIME = "not there", "switched off", "no time has passed"
"""Reasons for an unavailable value; the last two are normal: a block that is off, and a rate read twice at once."""
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
    """Return the number in a file. Raises OSError; ValueError: there is none from ``low`` to ``high``."""
    text = read_small(path)
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"it reads {text.strip()[:40]!r}, which is not a number") from None
    if not low <= value <= high:
        raise ValueError(f"it reads {value:g}, which is impossible (limits {low:g} to {high:g})")
    return value


def read_small(path: str) -> str:
    """Return up to a page of a file; raise OSError if it cannot be read.

    It takes a third of the time of Path.read_text, which matters for a meter that reads fifty files.
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
    """Return a path relative to ``root``, as the machine itself would show it."""
    return "/" + os.path.relpath(path, root)


def children(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder by name; nothing if it cannot be listed."""
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def gauge(unit: str, source: str, value: Callable[[], float]) -> Gauge:
    """Return a gauge of the result of ``value``, which is unavailable if that raises OSError or ValueError."""

    def read() -> Reading:
        try:
            return measured(value(), unit, source)
        except (OSError, ValueError) as error:
            return unavailable(unit, source, failure_of(error))

    return read


def file_gauge(
    path: Path, root: Path, unit: str, scale: float = 1.0, low: float = 0.0, high: float = float("inf")
) -> Gauge:
    """Return a gauge of the number in a file times ``scale``, which must be from ``low`` to ``high`` in ``unit``."""
    name, least, most = str(path), low / scale, high / scale
    return gauge(unit, shown_path(path, root), lambda: read_number(name, least, most) * scale)
