"""Over-current events of a Jetson, at which its hardware lowers the clocks because the module draws too much.

The driver ``soctherm_oc`` has a counter since boot for each limit, such as ``oc3_event_cnt``, that any user may read.
An event takes about a millisecond, so the alarms of power sensors hardly ever show one. The limits of Orin modules are
in the Jetson Linux Developer Guide, Platform Power and Performance, "Over Current Event"."""

from collections.abc import Mapping
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters import reading

LIMITS = {"oc1": "under voltage", "oc2": "average power", "oc3": "instantaneous power"}
"""Limit on Orin → quantity that it watches."""
_DRIVER, _SUFFIX = "soctherm_oc", "_event_cnt"


class OverCurrent:
    """Counters of over-current events, first read at creation."""

    def __init__(self, root: Path = Path("/")) -> None:
        folders = [one for one in reading.children(root / "sys/class/hwmon") if read_text(one / "name") == _DRIVER]
        paths = [path for folder in folders for path in sorted(folder.glob(f"oc*{_SUFFIX}"))]
        self._paths = {path.name.removesuffix(_SUFFIX): str(path) for path in paths}
        self.source = reading.shown_path(paths[0].with_name(f"oc*{_SUFFIX}"), root) if paths else _DRIVER
        self._first = self.since_boot()

    def since_boot(self) -> dict[str, int]:
        """Return limit → events since boot, without counters that cannot be read."""
        found = dict[str, int]()
        for name, path in self._paths.items():
            try:
                found[name] = int(reading.read_number(path, 0.0))
            except (OSError, ValueError):  # the driver went away, or the counter belongs to a block that is off
                continue
        return found

    def since_start(self) -> dict[str, int]:
        """Return limit → events since creation; empty on a machine without counters."""
        return difference(self.since_boot(), self._first)


def difference(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the growth of each counter; a counter that fell was reset to 0."""
    pairs = ((name, count, before.get(name, count)) for name, count in now.items())
    return {name: count - earlier if count >= earlier else count for name, count, earlier in pairs}


def listed(events: Mapping[str, int]) -> str:
    """Return the events as text, such as ``oc3 (instantaneous power) 27390``; empty for none."""
    known = ((name, f" ({LIMITS[name]})" if name in LIMITS else "", count) for name, count in events.items() if count)
    return ", ".join(f"{name}{what} {count}" for name, what, count in known)
