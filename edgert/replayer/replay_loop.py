"""Loop of a replay: one thread runs each stage as recorded, in the recorded order.

No queue drops results, no clock is read and nothing is waited for. A result waits for the entry of the task that
processed it. Results that no task processed are released when the recording says that they were lost, or when too many
wait.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgert.errors import StageError, located_at
from edgert.runtime import AsyncStage, Result, Source, Task, records
from edgert.runtime.decisions import Entry
from edgert.runtime.frame import Frame
from edgert.runtime.recovery import describe_error

log = logging.getLogger("edgert.replay")

_MOST_WAITING = 512
"""Maximum number of results of one stream between two stages; more than the queues and joins of a run hold."""
Key = tuple[str, int]


class ReplayClock:
    """Clock that shows the recorded time of the current decision.

    Attributes:
        offset_ns: nanoseconds to add for the recorded time since the epoch.
    """

    def __init__(self, offset_ns: int) -> None:
        self.at_ns, self.offset_ns = 0, offset_ns

    def now_ns(self) -> int:
        """Return the recorded time."""
        return self.at_ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Return at once, because time passes with the recording."""
        return event.is_set()


_Edge = dict[str, deque[Result]]
"""Results between two tasks, by stream, each with a lease of its frame."""


def _take(edge: _Edge, key: Key) -> Result | None:
    """Remove and return the oldest result of a frame, with its lease; None without one."""
    waiting = edge.get(key[0], deque())
    found = next((one for one in waiting if one.frame.index == key[1]), None)
    if found is not None:
        waiting.remove(found)
    return found


class _Node:
    """A task of the replay.

    Attributes:
        edges: edges into the task, by the producer's name.
        listeners: edges out of the task.
        parts: joined parts of frames that several edges bring.
        settings: settings that the recorded stage read before its last step.
        is_down: whether the recorded stage failed, so that it restarts before its next step.
    """

    def __init__(self, task: Task, settings: tuple[int, ...]) -> None:
        self.task, self.listeners, self.settings = task, list[_Edge](), settings
        self.edges: dict[str, _Edge] = {}
        self.parts: dict[Key, Result] = {}
        self.is_down = False

    @property
    def stage(self) -> Any:
        return self.task.stage

    def take(self, key: Key) -> Result | None:
        if (joined := self.parts.pop(key, None)) is not None:
            return joined
        return next((one for edge in self.edges.values() if (one := _take(edge, key)) is not None), None)

    def clear(self) -> None:
        waiting = [one for edge in self.edges.values() for each in edge.values() for one in each]
        for result in (*waiting, *self.parts.values()):
            result.frame.lease.release()
        self.parts.clear()
        for edge in self.edges.values():
            edge.clear()


class ReplayLoop:
    """Executor of recorded decisions. For one thread.

    Args:
        tasks: connected tasks, each after those it listens to.
        frame: function that returns the frame of an entry ``give``, with a lease; None if it was not recorded.
        replace: function called with a task and the number of an entry where its stage or decoder was replaced.
        level: function called with the level of degraded models before each step.
        failed: (task, stream, frame) of recorded failures.
        settings: task → settings at the start of the recording.

    Attributes:
        missing: (stream, frame) of frames that were not recorded, or whose packets are damaged.
        partial: (stream, frame) of frames that ran in other batches than recorded, because frames before the recording
            are missing.
        errors: errors of stages that did not fail in the recording, by task, stream and frame.
        batches: number of batches of another size than recorded.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        clock: ReplayClock,
        frame: Callable[[Entry], Frame | None],
        replace: Callable[[Task, int], object],
        level: Callable[[int], object],
        failed: set[tuple[str, str, int]],
        settings: Mapping[str, Sequence[int]],
    ) -> None:
        self._clock, self._frame, self._level, self._failed = clock, frame, level, failed
        self._nodes = {task.name: _Node(task, tuple(settings.get(task.name, ()))) for task in tasks}
        self._tasks = tasks
        for task in tasks:
            for producer, _ in task.wiring.edges():
                edge = self._nodes[task.name].edges[producer.name] = _Edge()
                self._nodes[producer.name].listeners.append(edge)
        self._failing = set[str]()
        self.missing, self.partial, self.batches = set[Key](), set[Key](), 0
        self.errors: dict[tuple[str, str, int], str] = {}
        self._acts: dict[str, Callable[[_Node, Entry], object]] = {
            "give": self._give,
            "part": self._part,
            "step": self._step,
            "submit": self._submit,
            "collect": self._collect,
            "drop": self._drop,
            "settings": self._store_settings,
            "replace": lambda node, entry: replace(node.task, entry.number),
        }

    def open(self) -> None:
        """Open every stage, the last first. Raises EdgertError."""
        for task in reversed(self._tasks):
            if not isinstance(task.stage, Source):
                with located_at(f"stage {task.name!r}"):
                    task.stage.open()

    def act(self, entry: Entry) -> None:
        """Make the decision of an entry again. Raises EdgertError if a replaced stage cannot be made."""
        node, act = self._nodes.get(entry.task), self._acts.get(entry.kind)
        if node is not None and act is not None:  # entries of sinks are not replayed
            self._clock.at_ns = entry.at_ns
            act(node, entry)

    def close(self) -> None:
        """Close every stage and release all frames."""
        for node in self._nodes.values():
            node.clear()
        for task in self._tasks:
            try:
                task.stage.close()
            except Exception as error:  # noqa: BLE001 - user code may raise anything; results were compared already
                log.warning("stage %r: closing it failed: %s", task.name, error)
        for node in self._nodes.values():
            node.clear()

    def _give(self, node: _Node, entry: Entry) -> None:
        frame = self._frame(entry)
        if frame is None:
            self.missing.add((entry.stream, entry.frame))
        else:
            self._deliver(node, Result(frame))
            frame.lease.release()

    def _part(self, node: _Node, entry: Entry) -> None:
        key, edge = (entry.stream, entry.frame), node.edges.get(str(entry.more))
        part = None if edge is None else _take(edge, key)
        if part is None:
            return
        first = node.parts.get(key)
        if first is None:
            node.parts[key] = part
            return
        joined = node.parts[key] = records.merge_results(first, part)
        (part if joined.frame is first.frame else first).frame.lease.release()

    def _drop(self, node: _Node, entry: Entry) -> None:
        if entry.more != "throttle" and (lost := node.take((entry.stream, entry.frame))) is not None:
            lost.frame.lease.release()

    def _store_settings(self, node: _Node, entry: Entry) -> None:
        node.settings = tuple(entry.more)

    def _apply_settings(self, node: _Node) -> None:
        if len(node.settings) == 3:
            every, level, self._clock.offset_ns = node.settings
            self._level(level)
            if every and getattr(node.stage, "every", every) != every:
                node.stage.every = every

    def _step(self, node: _Node, entry: Entry) -> None:
        if (result := self._input_of(node, entry)) is None:
            return
        try:
            out = node.stage.process(result)
            for one in () if out is None else (out,) if isinstance(out, Result) else out:
                self._deliver(node, one)
        except Exception as error:  # noqa: BLE001 - as in a run, a user's code may raise anything
            self._note_error(node, entry, error)
        finally:
            result.frame.lease.release()

    def _submit(self, node: _Node, entry: Entry) -> None:
        if (result := self._input_of(node, entry)) is None:
            return
        try:
            node.stage.submit((result,), (result,))
        except Exception as error:  # noqa: BLE001 - as above
            self._note_error(node, entry, error)
        finally:
            result.frame.lease.release()

    def _input_of(self, node: _Node, entry: Entry) -> Result | None:
        """Return the input of a step, with its lease; None if there is none, or the recorded stage failed."""
        result = node.take((entry.stream, entry.frame))
        if (entry.task, entry.stream, entry.frame) in self._failed:
            node.is_down = True
            if result is not None:
                result.frame.lease.release()
            return None
        if result is None:
            return None
        if node.is_down:
            node.is_down = False
            self._restart(node)
        self._apply_settings(node)
        download = node.task.execution.download
        return result if download is None else download(result)

    def _collect(self, node: _Node, entry: Entry) -> None:
        """Collect as many results as recorded, which belong to the same batch."""
        stage: AsyncStage = node.stage
        self._apply_settings(node)
        out = list[Result]()
        try:
            while len(out) < entry.more and stage.due_ns() is not None:
                more = stage.collect(False) if not out else []
                out += more or stage.collect(True)
        except Exception as error:  # noqa: BLE001 - as above
            for lost in stage.give_up():
                lost.frame.lease.release()
            self._note_error(node, entry, error)
        if len(out) != entry.more:
            self.batches += not self.missing
            self.partial.update((result.frame.stream, result.frame.index) for result in out)
        for result in out:
            self._deliver(node, result)
            result.frame.lease.release()

    def _restart(self, node: _Node) -> None:
        """Restart a stage, as the run did after a failure."""
        if node.task.policy.on_error == "restart":
            node.stage.close()
            if node.task.policy.remake is not None:
                node.task.stage = node.task.policy.remake()
            node.stage.open()

    def _note_error(self, node: _Node, entry: Entry, error: Exception) -> None:
        self.errors.setdefault((entry.task, entry.stream, entry.frame), describe_error(error))
        if node.task.name not in self._failing:
            self._failing.add(node.task.name)
            log.warning("stage %r fails at frame %d of %s, as it did not in the recording: %s",
                        node.task.name, entry.frame, entry.stream, describe_error(error))  # fmt: skip

    def _deliver(self, node: _Node, result: Result) -> None:
        """Pass a result to all listeners, each with a separate lease; the caller keeps its own."""
        if node.task.wiring.branch is not None:
            node.task.wiring.branch(result)  # it notes the order that is restored behind the branches
        for edge in node.listeners:
            result.frame.lease.retain()
            waiting = edge.setdefault(result.frame.stream, deque())
            waiting.append(result)
            if len(waiting) > _MOST_WAITING:
                waiting.popleft().frame.lease.release()


def check_tasks(recorded: Sequence[str], tasks: Sequence[Task], removed: Sequence[str]) -> None:
    """Raise StageError if this machine runs a stage in other tasks than the recorded run.

    Args:
        recorded: names of the tasks of the recorded run.
        tasks: tasks of the replay.
        removed: names of tasks that a replay leaves out.
    """
    here = {task.name for task in tasks}
    other = sorted((here ^ set(recorded)) - set(removed))
    if other:
        raise StageError(
            "this pipeline is made of other parts than the recorded one",
            why=f"{', '.join(other)} {'is' if len(other) == 1 else 'are'} only on one side",
            fix="replay with the same engines and versions; edgert replay names what differs",
        )
