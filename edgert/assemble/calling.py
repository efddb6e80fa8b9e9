"""Calls of a pipeline as a function: each call runs frames through all stages in the caller's thread."""

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from edgert.assemble.graph import Assembly
from edgert.config import PipelineFile, SinkStage, flow
from edgert.errors import EdgertError, StageError
from edgert.runtime import Frame, Result, Runner, Task, call_loop, watchdog
from edgert.runtime.task import FailurePolicy
from edgert.stages.gpu.download import Downloader
from edgert.stages.infer import Pinned
from edgert.stages.sink.results import CallbackSink
from edgert.stages.source import api, timeline, user_memory

_HANGS_S, _END_S, _POLL_S = 3.0, 1.0, 0.1
"""Seconds that closing waits for a stage in a call, and after interrupting it; and the pause between two checks. A
stage that still does not return is left behind, as in :mod:`edgert.runtime.runner`."""
_SPARE_BUFFERS = 3
"""Number of buffers that the caller may fill at a time."""
_LOG = logging.getLogger(__name__)


class _Caller:
    """Thread that calls the pipeline, in the form that the watchdog reads.

    ``native_id`` is the last calling thread's in the system.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.task, self.inline = tasks[0], tasks[1:]
        self.ident: int | None = None
        self.native_id: int | None = None

    def is_alive(self) -> bool:
        return self.ident is not None

    def is_here(self) -> bool:
        """Return whether the current thread is in a call."""
        return self.ident == threading.get_ident()

    def enter(self) -> None:
        """Mark the current thread as in a call."""
        self.ident, self.native_id = threading.get_ident(), threading.get_native_id()


class Calling:
    """Calls of one pipeline, one at a time. A second thread that calls waits for the first.

    The runner stores errors and the stop; its threads are not started. ``is_left`` is whether a call was left behind in
    a stage that does not return. Raises StageError: the pipeline cannot be called.
    """

    def __init__(self, file: PipelineFile, assembly: Assembly, runner: Runner) -> None:
        tasks, stages = assembly.graph.tasks, file.config.stages
        why, fix = flow.why_not_called(
            stages, [task.name.split(":")[0] for task in tasks if isinstance(task.stage, Pinned)]
        )
        if why:
            raise StageError("this pipeline cannot be called", why=why, where=file.config.name, fix=fix)
        (self._source,) = (task.stage for task in tasks if isinstance(task.stage, api.ApiSource))
        for task in tasks:
            if (hold := getattr(task.stage, "hold_until_full", None)) is not None:
                hold()
        sinks = {task.name for task in tasks if isinstance(stages.get(task.name), SinkStage)}
        sinks |= {task.name for task in tasks if isinstance(task.stage, CallbackSink)}
        for task in tasks:
            if isinstance(task.stage, CallbackSink) and not task.policy.at_start:
                # The call raises errors of a user's function, unless the file has another rule.
                task.policy = FailurePolicy(watchdog_s=task.policy.watchdog_s)
        for task in tasks[1:]:
            task.execution.carrier = tasks[0]  # all run in the caller's thread
        self._loop = call_loop.CallLoop(tasks, runner.clock, runner.stop_event, runner.fail, sinks)
        self._downloader, self._runner = Downloader(), runner
        # Reentrant: after a Ctrl-C between acquiring it and the call, the same thread can still close.
        self._tasks, self._turn, self._caller = tasks, threading.RLock(), _Caller(tasks)
        self._watchdog = watchdog.Watchdog(lambda: tasks, [self._caller], runner.clock)
        self._leased: list[Frame] = []
        self._is_mapping = self.is_left = False
        self._over, self._supervisor = threading.Event(), threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.name = "edgert:supervisor"
        try:
            self._supervisor.start()
        except RuntimeError as error:
            _LOG.warning("calls that hang will not be reported: cannot start a thread: %s", error)

    def __call__(self, arrays: Sequence[Any], options: dict[str, Any]) -> list[Result]:
        """Return the results of frames. Their pixels stay valid until the next call.

        Arguments are those of :meth:`~edgert.stages.source.api.ApiSource.submit`. Raises EdgertError: an array is no
        image, which changes nothing; or a stage failed, which ends the pipeline.
        """
        return self._step(arrays, options)

    def map(self, arrays: Iterable[Any], options: dict[str, Any]) -> Generator[Result, None, None]:
        """Yield the results of frames, in order. Each stays valid until the next.

        A GPU gets the next frames before the results of the last ones are waited for. If the iterator is closed early,
        frames in flight go through all stages, and their results are dropped. ``arrays`` is read image by image in the
        thread that asks for a result. Raises EdgertError: as in a call. When no more frames are accepted, as after
        ``limit:``, the iterator ends.
        """
        self._acquire_turn()
        self._is_mapping = True
        self._turn.release()
        try:
            with suppress(call_loop.EndOfFrames):
                for array in arrays:
                    if self._runner.is_stopping:
                        break
                    yield from self._step([array], options, maps=True, leaves=True)
                    with self._turn:
                        self._release()  # before the next buffer is acquired
            if not self._over.is_set():
                yield from self._step((), {}, maps=True)
        finally:
            self._end_mapping()

    def close(self) -> None:
        """Wait for the current call, release frames, and close all stages. Errors are stored in the runner.

        A stage that does not return is such an error. Its engine is interrupted where that is supported. Else all other
        stages are closed, and the call is left behind with its thread.
        """
        self._refuse_own_stages("closed")
        if not self.is_left and self._wait_for_turn():
            try:
                self._caller.enter()
                self._release()
                self._loop.close()
            finally:
                self._caller.ident = None
                self._turn.release()
        self._over.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()  # it refers to this object until it has ended

    def _wait_for_turn(self) -> bool:
        now_ns = self._runner.clock.now_ns
        began_ns = now_ns()
        while not self._turn.acquire(timeout=_POLL_S):
            for task in self._tasks:
                since_ns = task.meter.status.since_ns
                if since_ns and now_ns() - max(since_ns, began_ns) > _HANGS_S * 1e9:
                    return self._end_call(task, (now_ns() - since_ns) / 1e9)
        return True

    def _end_call(self, task: Task, took_s: float) -> bool:
        """Interrupt a stage's call or leave it behind; return whether it has ended, with the lock acquired."""
        at = self._watchdog.place_of(task)
        self._runner.stop()
        if (interrupt := getattr(task.stage, "interrupt", None)) is not None:
            interrupt()
            if self._turn.acquire(timeout=_END_S):
                return True
        self.is_left = True
        why = f"it has been in one call for {took_s:.1f} s{at and f', at {at}'}; its caller is left behind"
        self._runner.fail(StageError(f"stage {task.name} does not end", why=f"{why}, all other stages were closed"))
        self._loop.leave()
        return False

    def _supervise(self) -> None:
        """Report stages that do not return, and interrupt their engines. Body of the supervisor thread."""
        while not self._over.wait(self._watchdog.every_s):
            self._watchdog.look()

    def _acquire_turn(self, maps: bool = False) -> None:
        """Acquire the lock, for :meth:`map` or a call. Raises EdgertError if this is not possible now, or any more."""
        self._refuse_own_stages("called")
        is_next = self._acquire_lock()
        try:
            self._runner.raise_error()
            if not is_next or self._over.is_set() or (self._runner.is_stopping and not self._is_mapping):
                raise call_loop.EndOfFrames("no more frames are taken", why="the pipeline has ended")
            if self._is_mapping and not maps:
                raise StageError(
                    "a pipeline was called in the middle of map()",
                    why="the frames that map() has taken come first, and their results go to its iterator",
                    fix="exhaust or close() the iterator first, or make another Pipeline of the file",
                )
        except BaseException:
            if is_next:
                self._turn.release()
            raise

    def _acquire_lock(self) -> bool:
        """Acquire the lock; return False if it will never be released."""
        while not self._turn.acquire(timeout=_POLL_S):
            if self.is_left or self._over.is_set():
                return False
        return True

    def _step(
        self, arrays: Sequence[Any], options: dict[str, Any], maps: bool = False, leaves: bool = False
    ) -> list[Result]:
        self._acquire_turn(maps)
        try:
            return self._results(arrays, options, leaves)
        finally:
            self._turn.release()

    def _end_mapping(self) -> None:
        if not self._acquire_lock():
            return
        try:
            self._is_mapping = False
            if not self._over.is_set():
                if not self._runner.is_stopping:
                    self._results((), {})
                self._release()
        finally:
            self._turn.release()

    def _refuse_own_stages(self, action: str) -> None:
        if self._caller.is_here():
            why = "the call that the stage is part of has not returned yet"
            raise StageError(f"a pipeline was {action} by one of its own stages", why=why)

    def _results(self, arrays: Sequence[Any], options: dict[str, Any], leaves: bool = False) -> list[Result]:
        """Return results of these or earlier frames; see :meth:`~edgert.runtime.call_loop.CallLoop.run`."""
        given = list[tuple[Any, list[timeline.Image]]]()
        try:
            for array in arrays:
                given.append((array, self._source.images(array, **options)))
        except EdgertError:
            for pair in given:
                api.give_back(*pair)
            raise
        self._release()
        leaves = leaves and not self._lacks_buffers(given)
        left = iter(given)
        try:
            self._caller.enter()
            results = self._loop.run(self._supplies(left), leaves)
        except BaseException as error:
            for pair in left:
                api.give_back(*pair)
            if not isinstance(error, call_loop.EndOfFrames | KeyboardInterrupt):
                self._runner.raise_error()
            self._runner.stop()  # also after Ctrl-C: stages are in the middle of a frame
            raise
        finally:
            self._caller.ident = None  # an assignment, as Ctrl-C may come before a function call
        self._leased = [result.frame for result in results]
        return [self._downloader.with_host_image(result) for result in results]

    def _lacks_buffers(self, given: Iterable[tuple[Any, list[timeline.Image]]]) -> bool:
        """Return whether frames in flight use nearly all buffers of this kind, of which the caller needs some."""
        count = max((len(images) for _, images in given), default=1)
        return self._loop.in_flight >= (user_memory.most_in_use(count) - _SPARE_BUFFERS) * count

    def _supplies(self, given: Iterable[tuple[Any, list[timeline.Image]]]) -> Iterator[call_loop.FrameSupply]:
        """Yield the function that takes the frames of an array from the source, and their number, for each array."""
        for array, images in given:
            yield partial(self._source.take, array, images, self._runner.stop_event), len(images)

    def _release(self) -> None:
        leased, self._leased = self._leased, []
        for frame in leased:
            frame.lease.release()
        self._source.reclaim()
