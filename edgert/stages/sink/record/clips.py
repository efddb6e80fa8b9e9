"""Pure decisions about clips: when they begin and end, and which packets they begin with. Times are positions."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from pydantic import Field

from edgert.config.fields import Names, Seconds, Section
from edgert.stages.source.packets import Sample
from edgert.stages.zones.rules import Event

LATE_NS = 10 * 10**9
"""Longest time from an event's beginning to its report for which the clip still begins early enough."""


class History:
    """The last packets of a stream, beginning with a key frame.

    Args:
        keep_ns: time to keep before the newest packet.
        limit_bytes: maximum size; beyond it the oldest packets are removed, up to a key frame.

    Attributes:
        newest_ns: position of the newest packet.
        is_short: whether the size once was too small for the time.
    """

    def __init__(self, keep_ns: int, limit_bytes: int) -> None:
        self._keep_ns, self._limit_bytes = keep_ns, limit_bytes
        self._samples = deque[Sample]()
        self._keys = deque[tuple[int, int]]()  # numbers and positions of the key frames
        self._first, self._nbytes = 0, 0
        self.is_short, self.newest_ns = False, 0

    def __bool__(self) -> bool:
        return bool(self._samples)

    @property
    def seconds(self) -> float:
        """Duration of the packets in seconds."""
        return (self._samples[-1].at_ns - self._samples[0].at_ns) / 1e9 if self._samples else 0.0

    def add(self, samples: Iterable[Sample]) -> None:
        """Add the next packets, but none before the first key frame."""
        for sample in samples:
            if sample.is_key:
                self._keys.append((self._first + len(self._samples), sample.at_ns))
            if self._keys:
                self._samples.append(sample)
                self._nbytes += sample.nbytes
                self.newest_ns = sample.at_ns

    def start(self, begin_ns: int) -> int:
        """Return the number of the last key frame at or before a position; of the first where all are later."""
        numbers = [number for number, at_ns in self._keys if at_ns <= begin_ns]
        return numbers[-1] if numbers else self._first

    def since(self, number: int) -> Iterator[tuple[int, Sample]]:
        """Yield the stored packets from a number on, each with its number."""
        begin = max(number - self._first, 0)
        return enumerate(islice(self._samples, begin, None), self._first + begin)

    def trim(self, newest_ns: int) -> None:
        """Remove packets that are too old at a position, or too large together."""
        while len(self._keys) > 1:
            is_old = self._keys[1][1] <= newest_ns - self._keep_ns
            if not is_old and self._nbytes <= self._limit_bytes:
                return
            self.is_short |= not is_old
            self._keys.popleft()
            while self._first < self._keys[0][0]:
                self._nbytes -= self._samples.popleft().nbytes
                self._first += 1
        if self._nbytes > self._limit_bytes:  # key frames are too rare: keep nothing before the next
            self.is_short = True
            self._first += len(self._samples)
            self._samples.clear()
            self._keys.clear()
            self._nbytes = 0


@dataclass
class Clip:
    """A clip that is being recorded.

    Attributes:
        begin_ns: position of its beginning.
        limit_ns: latest position of its end.
        until_ns: position of its end, unless an event lasts longer or another begins.
        events: events in it, as they began.
        lasting: positions where events that have not ended began, by event id.
        next: number of its next packet; None before the first.
    """

    begin_ns: int
    limit_ns: int
    until_ns: int = 0
    events: list[Event] = field(default_factory=list)
    lasting: dict[str, int] = field(default_factory=dict)
    next: int | None = None

    def end_ns(self, known_ns: int) -> int:
        """Return the position of its end, as far as it is known.

        Args:
            known_ns: position up to which all events are known.
        """
        return min(max(self.until_ns, known_ns) if self.lasting else self.until_ns, self.limit_ns)


class ClipsSection(Section):
    """Section of clips around events."""

    before: Seconds = Field(default=5.0, description="what is kept of the time before an event")
    after: Seconds = Field(default=5.0, ge=0, description="what is kept of the time after it")
    longest: Seconds = Field(default=300.0, ge=1, description="longest clip; another one begins then")
    rules: Names = Field(default=(), description="rules whose events are kept; default: all")


class Clips:
    """The clips of one stream. Overlapping events share a clip; a longer event than the longest clip is cut off.

    Attributes:
        clip: the clip that is being recorded; None between two clips.
    """

    def __init__(self, config: ClipsSection) -> None:
        lengths_s = config.before, config.after, config.longest
        self.before_ns, self._after_ns, self._longest_ns = (round(1e9 * one) for one in lengths_s)
        self._rules = config.rules
        self.clip: Clip | None = None

    def take(self, event: Event, at_ns: int) -> None:
        """Begin or extend the clip by an event of the frame at a position."""
        clip = self.clip
        if event.phase == "begin" and (not self._rules or event.rule in self._rules):
            began_ns = at_ns - round(event.seconds * 1e9)
            if clip is None:
                first_ns = max(began_ns, at_ns - LATE_NS) - self.before_ns
                clip = self.clip = Clip(first_ns, first_ns + self._longest_ns)
            clip.events.append(event)
            clip.until_ns = max(clip.until_ns, at_ns + self._after_ns)
            if not event.way:  # crossing a line takes no time
                clip.lasting[event.id] = began_ns
        elif event.phase == "end" and clip is not None and event.id in clip.lasting:
            ended_ns = clip.lasting.pop(event.id) + round(event.seconds * 1e9)
            clip.until_ns = max(clip.until_ns, ended_ns + self._after_ns)

    def end_over(self, newest_ns: int, known_ns: int) -> bool:
        """End the clip if it is complete; return whether it was.

        Args:
            newest_ns: position of the newest packet.
            known_ns: position up to which all events are known.
        """
        clip = self.clip
        if clip is None or min(newest_ns, known_ns) <= clip.end_ns(known_ns):
            return False
        self.clip = None
        return True
