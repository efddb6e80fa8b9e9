"""A node of a pipeline, and what becomes of each result there, in whatever thread that is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import cast

from edgert import user_code
from edgert.clock import Clock
from edgert.errors import EdgertError, StageError
from edgert.memory import Counter, EndedLease
from edgert.policy import Join, Reads, most_under_way
from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.frame import Frame
from edgert.runtime.metrics import StageMeter
from edgert.runtime.passing import Together, lost, parts, size_of, without_pixels
from edgert.runtime.passing import merged as merged_results
from edgert.runtime.records import Result
from edgert.runtime.recovery import OPENINGS, STOPS, FailurePolicy, Recovery, note_back
from edgert.runtime.stage import Batching, Source, Stage
from edgert.runtime.throttle import SourceRateLimiter

_NONE = EndedLease(Counter())
_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Node:
    """A stage in the graph: what runs, what it listens to, and what listens to it.

    Attributes:
        outlets: one channel per stage that listens to this one; replaced by a new tuple when a listener joins.
        carried: per edge of ``inlet``, the streams that arrive on it.
        producers: per edge of ``inlet``, the node at its other end.
        meter: totals of its thread.
        was_opened: whether its stage was ever opened.
        branch: which one of the outlets a result goes to, by number; None: to all.
        joins: whether several edges that carry one stream bring parts of the same frames, to be joined; otherwise
            each brings frames of its own.
        limiter: limits the frames of a source that a governor may throttle; None: all of them go on.
        reads: which pixels the stage looks at; nothing of that where frames are never on a GPU.
        take: makes of a result what the stage gets, such as one on the host, and takes over its hold; None: nothing.
        lets_go: whether nobody behind looks at pixels, so that a frame's lease ends before the node waits for others.
        runs_in: the node in whose thread this one runs, too; None: it has a thread of its own.
        lag: of such a node, how many results may wait for it: it waits itself, for a GPU that goes on meanwhile.
        spared: of its time between two results, the part within which the thread of the node that it listens to does
            its work, so that one thread less is woken for a result; its own takes over when it is slower. 0: at once.
        context: in which it works, such as a GPU's, instead of entering it for every call. What runs inline behind it
            works outside, as its code may be a user's, but for one that lags, or is spared its thread: that has the
            same.
        since_ns: since when it is in one call of its stage; 0 while it is in none.
        care: what holds when it fails or hangs.
        renew: makes the stage anew, before it is opened again after a failure; None: the same one is opened.
        reorders: whether a reorder buffer waits for each of its results, one that was lost, too.
        failing: why results are lost here now; empty while none are.
        back: since when it has worked again, and after how many seconds, until that is logged.
        stuck_s: for how long it has been in one call, once that is longer than its watchdog.
        opening_s: what opening took, with a model's first run.
        is_closing: whether the call that it is in closes it.
    """

    name: str
    work: Source | Stage
    inlet: Inlet = field(default_factory=Inlet)
    outlets: tuple[Channel, ...] = ()
    carried: list[frozenset[str]] = field(default_factory=list)
    producers: list[Node] = field(default_factory=list)
    meter: StageMeter = field(default_factory=StageMeter)
    was_opened: bool = False
    branch: Callable[[Result], int] | None = None
    joins: bool = True
    limiter: SourceRateLimiter | None = None
    reads: Reads = "anywhere"
    take: Callable[[Result], Result] | None = None
    lets_go: bool = False
    runs_in: Node | None = None
    lag: int = 0
    spared: float = 0.0
    context: AbstractContextManager[object] | None = None
    since_ns: int = 0
    care: FailurePolicy = STOPS
    renew: Callable[[], Stage] | None = None
    reorders: bool = False
    failing: str = ""
    back: tuple[int, float] | None = None
    stuck_s: float = 0.0
    opening_s: float = 0.0
    is_closing: bool = False

    def reopen(self) -> None:
        """Opens its stage after a failure. Raises what that raises."""
        if self.renew is not None:
            self.work = self.renew()
        cast("Stage", self.work).open()

    def carriers(self) -> Iterator[Node]:
        """The nodes in whose threads it may be in a call: its own, or others' that it is worked on in."""
        node = self.runs_in or self
        yield node
        while node.spared:
            node = node.producers[0].runs_in or node.producers[0]
            yield node

    def under_way(self) -> int:
        """The most results of one stream that can be between its source and this node, by the slowest path."""
        edges = zip(self.producers, self.inlet.channels, strict=True)
        return most_under_way([(producer.under_way(), channel.capacity) for producer, channel in edges], self.joins)


class Station:
    """A node at work, in whatever thread calls it: what becomes of each result, and what is measured of it.

    Attributes:
        join: of the parts of a frame, where several edges bring them; set before the first result.
    """

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node, self._clock = node, clock
        self._recovery = Recovery(node, clock)
        self.is_batching = isinstance(node.work, Batching)
        self.join: Join[Result] | None = None
        self._is_end = not node.outlets  # those who listen for a while come later

    def open(self) -> None:
        """Opens the stage. Raises what it raises, unless the pipeline goes on without it."""
        node, began_ns = self.node, self._clock.now_ns()
        node.since_ns = began_ns or 1
        try:
            self._recovery.stage.open()
        except Exception as error:
            if not (node.care.at_start and self.outlives(error)):
                raise
        else:
            self.opened()
            node.opening_s = took_s = (self._clock.now_ns() - began_ns) / 1e9
            if 0 < node.care.watchdog_s < took_s:
                _LOG.warning(
                    "stage %r took %.3g s to open, with a first run; its watchdog of %.3g s waits %d times as long",
                    *(node.name, took_s, node.care.watchdog_s, OPENINGS),
                )
        finally:
            node.since_ns = 0

    def opened(self) -> None:
        """It is to be closed: a stage that was opened, and every source."""
        self._recovery.is_open = True

    def close(self) -> None:
        """Closes what is open. Raises what that raises, unless the pipeline goes on all the same."""
        node = self.node
        node.is_closing = True
        self._recovery.is_over()
        if self._recovery.is_open:
            self._recovery.is_open = False
            node.since_ns = self._clock.now_ns() or 1
            try:
                node.work.close()
            except Exception as error:
                if node.care.on_error == "stop":
                    raise
                self._recovery.failed_to_close(error)
            finally:
                node.since_ns = 0
        note_back(node, 2**63)

    def outlives(self, error: BaseException) -> bool:
        """Whether the pipeline goes on after a failure of the stage, which is counted and logged."""
        return self._recovery.outlives(error)

    def give(self, frame: Frame, made_ns: int, worked_ns: int) -> None:
        """Passes a source's frame on, with its hold; ``made_ns`` is when it was made, in ``worked_ns`` of work."""
        meter = self.node.meter
        meter.results_in += 1
        meter.busy_ns += worked_ns
        meter.done(frame.stream, made_ns - frame.timestamp_ns)
        self.hand_over(Result(frame))
        meter.results_out += 1

    def give_several(self, frames: Sequence[Frame], made_ns: int, worked_ns: int) -> None:
        """The same of frames that a source has at once; as one where the node behind takes them so."""
        node, meter, count = self.node, self.node.meter, len(frames)
        meter.results_in += count
        meter.busy_ns += worked_ns
        results = [Result(frame) for frame in frames]
        self._count_done(results, made_ns)
        is_one = node.branch is None and len(node.outlets) == 1 and node.outlets[0].together
        for result in (Together.of(results, {}),) if is_one else results:
            self.hand_over(result)
        meter.results_out += count

    def joined(self, edge: int, result: Result) -> Result | None:
        """What came on an edge, together with what belongs to it from others; None until all of that is there."""
        if self.join is None:
            return result
        joined, given_up = self.join.add(edge, result.frame.stream, result.frame.index, result)
        self._give_up(given_up)
        return joined

    def give_up(self, before: int | None = None) -> None:
        """Lets go of parts of frames whose others never came; ``before``: of those with lower numbers."""
        if self.join is not None:
            self._give_up(self.join.drain(before))

    def step(self, result: Result) -> bool:
        """Has the stage work on a result, and passes on what comes of it; ends the hold on its frame. Returns whether
        anything went on."""
        node, stage, now = self.node, self._recovery.stage, self._clock.now_ns
        meter = node.meter
        started, lease = now(), result.frame.lease
        node.since_ns = started or 1
        try:
            if node.take is not None:
                result = node.take(result)
                lease = result.frame.lease
            out = stage.process(result)
            if node.lets_go and out is not None and (isinstance(out, Result) or self.is_batching):
                out = _let_go(out)
                lease.release()
                lease = _NONE  # nothing is held while the queue behind is full
            done = now()
            node.since_ns = 0
            meter.busy_ns += done - started
            meter.results_in += size_of(result)
            if self._is_end:
                self._count(result, done, is_end=True)
            if out is None:
                return False
            if self._pass_on(out, done):
                meter.wait_out_ns += now() - done
                return True
            return False
        except Exception as error:
            held = self._held()
            if not self.outlives(error):
                raise
            self._lose((*parts(result), *held))
            if node.reorders and lease is not _NONE:
                self.send(lost(result))
            return False
        finally:
            node.since_ns = 0
            lease.release()

    def flush(self, last: bool = False) -> None:
        """Passes on what a batching stage holds and must wait no longer; with ``last`` everything."""
        node, now = self.node, self._clock.now_ns
        node.since_ns = started = now()
        try:
            flushed = cast("Batching", self._recovery.stage).flush(last)
            node.since_ns = 0
            out = _let_go(flushed) if node.lets_go else flushed
            done = now()
            node.meter.busy_ns += done - started
            self._pass_on(out, done)
            node.meter.wait_out_ns += now() - done
        except Exception as error:
            held = self._held()
            if not self.outlives(error):
                raise
            self._lose(held)
        finally:
            node.since_ns = 0

    def send(self, result: Result) -> None:
        """Gives a result to those that listen; the caller's hold on its frame goes on."""
        if self.node.outlets:
            result.frame.lease.retain()
            self.hand_over(result)

    def hand_over(self, result: Result) -> None:
        """Gives a result to those that listen, and with it the caller's hold on its frame."""
        node, lease = self.node, result.frame.lease
        outlets = node.outlets if node.branch is None else (node.outlets[node.branch(result)],)
        if len(outlets) != 1:
            if not outlets:
                lease.release()
                return
            lease.retain(len(outlets) - 1)
        for outlet in outlets:
            outlet.put(result)

    def failure(self, error: BaseException) -> EdgertError:
        """An error of the stage as that of the pipeline, with the stage's name."""
        place = f"stage {self.node.name!r}"
        if isinstance(error, EdgertError):
            return error.at(place)
        # a user's code or a bug: this stage's failure, with its traceback
        what = f"{place} failed: {type(error).__name__}: {error}"
        at = user_code.place_of(error)
        fix = "edgert run --debug shows the traceback"
        return StageError(what, why=at and f"at {at}", where=place, fix=fix).caused_by(error)

    def _pass_on(self, out: Result | Iterable[Result], done_ns: int) -> int:
        """How many went on."""
        outlets, meter, count = self.node.outlets, self.node.meter, 0
        if len(outlets) == 1 and outlets[0].together and isinstance(out, list) and len(out) > 1:
            out = Together.of(out, {})
        for result in (out,) if isinstance(out, Result) else out if isinstance(out, list) else self._made(out):
            count += size_of(result)
            if not self._is_end:  # else it was counted when it came
                self._count(result, done_ns)
            self.send(result)
        meter.results_out += count
        return count

    def _count(self, result: Result, done_ns: int, is_end: bool = False) -> None:
        """Counts a result that it is done with."""
        if size_of(result) > 1:
            self._count_done(parts(result), done_ns, is_end)
            return
        meter, frame = self.node.meter, result.frame
        latency_ns = done_ns - frame.timestamp_ns
        meter.done(frame.stream, latency_ns)
        if is_end:
            meter.latency.add(latency_ns)

    def _count_done(self, results: Sequence[Result], done_ns: int, is_end: bool = False) -> None:
        """Counts results that it is done with; those in a row of one stream and time at once."""
        meter, at, last = self.node.meter, 0, len(results)
        while at < last:
            first, start = results[at].frame, at
            stream, timestamp_ns = first.stream, first.timestamp_ns
            at += 1
            while at < last and (one := results[at].frame).timestamp_ns == timestamp_ns and one.stream == stream:
                at += 1
            meter.done(stream, done_ns - timestamp_ns, at - start)
            if is_end:
                meter.latency.add(done_ns - timestamp_ns, at - start)

    def _made(self, out: Iterable[Result]) -> Iterator[Result]:
        """Results of a stage that makes each when it is asked for it: that is a call of it, too."""
        iterator = iter(out)
        while True:
            self.node.since_ns = self._clock.now_ns()
            try:
                result = next(iterator)
            except StopIteration:
                return
            finally:
                self.node.since_ns = 0
            yield result
            del result  # it would keep the frame's memory in use

    def _held(self) -> Sequence[Result]:
        """What a stage that has failed had collected, which is let go."""
        held = cast("Batching", self._recovery.stage).give_up() if self.is_batching else ()
        for one in held:
            one.frame.lease.release()
        return held

    def _lose(self, results: Iterable[Result]) -> None:
        """Counts what the stage failed on, each once, or what came while it was down."""
        meter = self.node.meter
        for one in {id(one): one for one in results}.values():
            key = (one.frame.stream, "error")
            meter.lost, meter.losses[key] = meter.lost + 1, meter.losses.get(key, 0) + 1

    def _give_up(self, results: Sequence[Result]) -> None:
        meter = self.node.meter
        meter.unmatched += len(results)
        for result in results:
            key = result.frame.stream, "join"
            meter.losses[key] = meter.losses.get(key, 0) + 1
            result.frame.lease.release()


def merged(first: Result, second: Result) -> Result:
    """One of two parts of a frame: two holds came in, one goes out."""
    merged = merged_results(first, second)
    (second if merged.frame is first.frame else first).frame.lease.release()
    return merged


def _let_go(out: Result | Iterable[Result]) -> Result | list[Result]:
    """Results without pixels, all at once: the leases of a batch end together."""
    return without_pixels(out) if isinstance(out, Result) else [without_pixels(result) for result in out]
