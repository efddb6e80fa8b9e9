"""Times of the week for rules, such as ``mon-fri 08:00-18:00``."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = "|".join(_DAYS)
_HOURS = re.compile(
    rf"(?:(?P<days>(?:{_DAY})(?:-(?:{_DAY}))?(?:,(?:{_DAY})(?:-(?:{_DAY}))?)*)\s*)?"
    r"(?P<times>(?P<from>\d\d?:\d\d)-(?P<to>\d\d?:\d\d))?"
)


@dataclass(frozen=True, slots=True)
class Hours:
    """A period on some days of the week. It lasts over midnight where the end is not later than the beginning.

    Attributes:
        days: days on which it begins, from 0 for Monday.
        begin: first minute, since midnight.
        end: minute after the last one.
    """

    days: frozenset[int]
    begin: int = 0
    end: int = 24 * 60

    def __contains__(self, moment: datetime) -> bool:
        minute, day = 60 * moment.hour + moment.minute, moment.weekday()
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        began_yesterday = (day - 1) % 7 in self.days and minute < self.end
        return began_yesterday or (day in self.days and minute >= self.begin)


def parse_hours(text: object) -> Hours:
    """Parse ``mon-fri 08:00-18:00``, ``sat,sun`` or ``22:00-06:00``. Raises ValueError for anything else."""
    found = _HOURS.fullmatch(str(text).strip().lower()) if isinstance(text, str) and text.strip() else None
    if found is None:
        raise ValueError("expected days and hours like 'mon-fri 08:00-18:00', 'sat,sun' or '22:00-06:00'")
    days = frozenset(_days(found["days"])) if found["days"] else frozenset(range(7))
    if not found["times"]:
        return Hours(days)
    begin, end = _minutes(found["from"]), _minutes(found["to"])
    if begin == end:
        raise ValueError("the hours end when they begin; leave them out for complete days")
    return Hours(days, begin, end)


def _days(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, stop = _DAYS.index(first), _DAYS.index(last or first)
        yield from ((start + step) % 7 for step in range((stop - start) % 7 + 1))


def _minutes(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if minutes > 59 or 60 * hours + minutes > 24 * 60:
        raise ValueError(f"no time of the day: {text}")
    return 60 * hours + minutes


def is_within(hours: Sequence[Hours], time_ns: int) -> bool:
    """Return whether a time, in nanoseconds of the epoch, is within some hours of this machine's time zone.

    Without hours, return True.
    """
    return not hours or any(datetime.fromtimestamp(time_ns / 1e9) in one for one in hours)
