"""The Python API for robots: a pipeline file as an object.

with edgert.Pipeline("dock.yaml") as pipeline:
    for result in pipeline.results("find", timeout=1.0):
        steer(result.detections.boxes, result.timestamp_ns)

Or, where the program brings the frames and waits for each result: ``steer(pipeline(frame).detections.boxes)``.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakSet

from edgert.board.gpu_start import gpu_started
from edgert.config import PipelineFile, load_pipeline
from edgert.config.engine_choice import TENSORRT
from edgert.errors import BudgetError, EdgertError, StageError, nearest, printable_record
from edgert.meters import peak_rss_bytes
from edgert.meters.over_current import OverCurrent
from edgert.policy import Drop
from edgert.runtime import Node, Result, Runner, Summary, summarize
from edgert.runtime.announce import Beacon
from edgert.runtime.branches import disconnect
from edgert.runtime.frame import has_pixels
from edgert.runtime.recent import History, totals
from edgert.runtime.worker import works_for
from edgert.stages.gpu.download import Downloader
from edgert.stages.sink.output_files import fixed_folder
from edgert.stages.sink.results import CallbackSink
from edgert.stages.source.api import ApiSource, are_several
from edgert.stages.source.user_memory import Buffer

if TYPE_CHECKING:  # assembling imports half of edgert: a GPU starts meanwhile; most pipelines have no budgets
    from edgert.assemble import Bar, Callback, Environment
    from edgert.assemble.calling import Calling
    from edgert.budget.footprint import Footprint
    from edgert.budget.watch import Watch

_LOG = logging.getLogger(__name__)
_TAP_QUEUE = 4
_OPEN: WeakSet[Pipeline] = WeakSet()
"""Pipelines that have begun and were not closed."""


@atexit.register
def _close_all() -> None:
    """Close what the program left open, while Python can still wait for threads.

    A thread that Python ends later, in a call of the CUDA driver, takes the process down: PyCUDA aborts where a thread
    ends within a context (https://documen.tician.de/pycuda/driver.html).
    """
    for pipeline in list(_OPEN):
        try:
            pipeline.close()
        except EdgertError as error:
            _LOG.warning("%s, closed at the end of the program: %s", pipeline.file.config.name, error)


class ResultTimeout(StageError, TimeoutError):  # noqa: N818 - reads as what it is
    """No result came in the time that was given."""


class Pipeline:
    """A pipeline, from its file to the end of its last thread.

    Threads start with the first call of :meth:`start`, :meth:`run`, :meth:`results` or :meth:`submit`; a pipeline that
    is itself called, ``pipeline(frame)``, has none: its stages run in the caller's. Every method may be called from any
    thread. Leaving the ``with`` block stops the threads, closes files and devices, and frees the engines.

    Args:
        file: path of the YAML file, or a pipeline loaded by :func:`edgert.load_pipeline`.
        overrides: ``key.path=value`` strings, as given to ``--set``; for a path only.
        callbacks: stage name → function called with each of that stage's results, in a thread of the pipeline; also
            the functions of ``sink: callback`` stages.
        bar: called with (what, done, total) while a model is calibrated, or compiled by TensorRT, which happens once,
            before anything starts.
        strict: an engine of ``engines:`` that would be skipped is an error; without that key, one that refuses a model.

    Raises:
        EdgertError: the file, a model or a stage is wrong, or a budget cannot be kept; nothing has been started then.
    """

    def __init__(
        self,
        file: str | Path | PipelineFile,
        *,
        overrides: Iterable[str] = (),
        callbacks: Mapping[str, Callback] | None = None,
        bar: Bar | None = None,
        strict: bool = False,
    ) -> None:
        loaded = load_pipeline(file, overrides)
        rtx = loaded.config.engines[:1] in ((), (TENSORRT,))
        with ExitStack() as gpu:
            gpu.enter_context(gpu_started(loaded.config.likely_on_gpu, rtx=rtx))
            from edgert.assemble import HERE, with_default_engines

            found, chosen = with_default_engines(loaded)
            if chosen:
                _LOG.info("%s", chosen)
            self._assemble(HERE, found, callbacks or {}, bar, strict, gpu.close)

    @classmethod
    def within(
        cls,
        environment: Environment,
        file: str | Path | PipelineFile,
        *,
        callbacks: Mapping[str, Callback] | None = None,
        bar: Bar | None = None,
        strict: bool = False,
    ) -> Pipeline:
        """A pipeline that runs in an environment of edgert's own, such as a bundle or an emulated board.

        Args:
            environment: clock, engines, meters and what else differs from this machine.
            file: see the class, as all that follow. Without ``engines:`` ONNX Runtime runs its models, unless the
                environment has engines; see :func:`~edgert.assemble.default_engines.with_default_engines`.
            callbacks: see the class.
            bar: see the class.
            strict: see the class.
        """
        made = cls.__new__(cls)
        made._assemble(environment, load_pipeline(file), callbacks or {}, bar, strict)
        return made

    def _assemble(
        self,
        environment: Environment,
        file: PipelineFile,
        callbacks: Mapping[str, Callback],
        bar: Bar | None,
        strict: bool,
        before_planning: Callable[[], object] = bool,
    ) -> None:
        from edgert.assemble import assemble
        from edgert.assemble.memory import fits_easily, fitted
        from edgert.assemble.threads import share_threads
        from edgert.videos import only_video

        file = only_video(file)
        # Small enough for its memory budget and this machine; without such a budget, where memory is plenty, as it is.
        self.file = file
        self._footprint: Footprint | None = None
        if file.config.budgets.memory is not None or not fits_easily(file):
            before_planning()  # memory that is free is free for all that is planned, a GPU's context too
            self.file, self._footprint = fitted(file, has_engines=environment.engines is not None)
        self._assembly = assemble(self.file, callbacks=callbacks, bar=bar, strict=strict, environment=environment)
        self._assembly.hooks.stats = self._detailed
        precision = {name: engine.info.get("precision") for name, engine in self._assembly.engines.items()}
        left = [name for name, model in self.file.config.models.items() if model.precision == "auto"]
        if chosen := [f"{name} {precision[name]}" for name in left if precision.get(name)]:
            _LOG.info("precision: auto is %s", ", ".join(chosen))
        # Asked for every frame.
        self._fed = {node.name: node.work for node in self._assembly.nodes if isinstance(node.work, ApiSource)}
        self._environment = environment
        for stage, function in callbacks.items():
            if getattr(self.file.config.stages.get(stage), "sink", None) != "callback":
                listener = Node(f"callback of {stage}", CallbackSink(stage, function), reads="host")
                listener.care = self._assembly.listener
                drop: Drop = "oldest" if self._assembly.live else "never"
                self._assembly.listen(self._known(stage), listener, _TAP_QUEUE, drop)
                self._assembly.nodes.append(listener)
        self._assembly.settle()
        share_threads(self._assembly.nodes)
        calls_back = any(isinstance(node.work, CallbackSink) for node in self._assembly.nodes)
        environment.paced(self._assembly.nodes)
        self._taps, self._tapping = list[Node](), threading.RLock()
        self._runner = Runner(self._assembly.nodes, environment.clock, self.file.located)
        if not calls_back:
            self._assembly.hooks.on_left = self._runner.stop_unless_read
        began = partial(getattr, self._runner, "started_ns")
        self._history = History(self._assembly.nodes, environment.clock, began)
        self._watch: Watch | None = None
        budgets, label = self.file.config.budgets, environment.label
        if budgets != type(budgets)():  # most pipelines have none and start without it
            from edgert.assemble.governing import watch

            try:
                self._watch = watch(self.file, self._assembly, environment, self._runner.fail)
            except BudgetError:
                self._assembly.close()
                raise
        # What `edgert top` shows: nothing of where frames come from, which may hold a password.
        about = {"name": self.file.config.name, "file": str(self.file.document.path.absolute()), "label": label}
        self._beacon = Beacon(lambda: {**about, "stats": self.state()})
        self._started = self._ran = False
        self._started_s: float | None = None
        self._over_current: OverCurrent | None = None
        self._calling: Calling | None = None
        self._process, self._closing = os.getpid(), threading.RLock()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EdgertError as late:  # it must not hide the error that is already on its way out
            if error is None:
                raise
            is_new = late is not error and late.__context__ is not error
            if is_new and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"while stopping: {late}")
        finally:
            del error, traceback  # which hold this frame, where closing raised it again

    @property
    def running(self) -> bool:
        """Whether any stage still works; of a pipeline that is called, whether it may be called again."""
        if self._calling is not None:
            return not self._runner.stopping
        return self._started and self._runner.running

    @overload
    def __call__(self, frame: list[Any], **options: Any) -> list[Result]: ...

    @overload
    def __call__(self, frame: Any, **options: Any) -> Result: ...

    def __call__(self, frame: Any, **options: Any) -> Result | list[Result]:
        """Takes a frame through all stages, sinks and callbacks too, in this thread, and returns its result.

        For control loops: no thread and no queue is between the frame and its result. The pipeline has one source,
        ``source: api``, and is not started: it is either called or started. The first call opens sinks and warms
        models up. Calls of several threads wait for each other; frames are those of one stream, in the order of the
        calls, so a tracker wants one pipeline per camera. A call returns when all stages are done with the frame, so
        nothing is ever dropped; where a budget leaves no room for the frame yet, it waits.

        Args:
            frame: see :meth:`submit`; or a batch, as one array or a list of frames, which run together where a model
                has ``batch:``, and else one after the other.
            options: ``format``, ``timestamp_ns`` and ``copy`` of
                :meth:`~edgert.stages.source.api.ApiSource.submit`, for all of them.

        Returns:
            For each frame, the records of all stages that it reached. A drawn image is an array of the host. The
            result's frame is lent until the next call; arrays that outlive that stay as they are, but for memory that
            was lent by :meth:`buffer` or lies on a GPU: retain its lease.

        Raises:
            StageError: not an image, which changes nothing; this pipeline cannot be called, and why; it was started;
                or it has ended.
            EdgertError: the first error of any stage, which ends the pipeline.
        """
        called, is_list = self._called(), isinstance(frame, list)
        results = called(frame if is_list else [frame], options)
        is_many = is_list or len(results) > 1 or are_several(frame, options.get("format"))
        return results if is_many else results[0]

    def map(self, frames: Iterable[Any], **options: Any) -> Generator[Result, None, None]:
        """Takes one frame after the other through all stages, in this thread, and gives their results out in order.

        For recordings, folders and datasets: ``for result in pipeline.map(frames)``. Like a call, without threads and
        queues, but a GPU is given the next frames before the results of the last are waited for, and models with
        ``batch:`` get full batches. Where a GPU runs the models, no other way takes less of the processor; stages that
        the processor works on keep several cores busy only where they have threads: :meth:`run`, :meth:`submit`.

        Args:
            frames: see :meth:`submit`, each a frame or a batch; asked for a few frames ahead of the results.
            options: ``format``, ``timestamp_ns`` and ``copy`` of
                :meth:`~edgert.stages.source.api.ApiSource.submit`, for all of them.

        Returns:
            An iterator over a result for each frame; see :meth:`__call__`. A result's frame is lent until the next
            result is asked for. Closed early, as by leaving the loop, it has the frames that were taken go through all
            stages; the pipeline may be called again then, not before.

        Raises:
            StageError: as a call does. While iterating: not an image; or the first error of any stage, as
                EdgertError, which ends the pipeline.
        """
        return self._called().map(frames, options)

    def buffer(self, shape: Sequence[int], *, stage: str | None = None, **options: Any) -> Buffer:
        """Lends memory for an image of a ``source: api`` stage, or a batch: to fill, and then submit or call with.

        A model on a GPU reads it without a copy by the host. Without a GPU it is ordinary aligned memory.

        Args:
            shape: (width, height) in pixels, or the array's: (height, width, channels).
            stage: which source, where there are several.
            options: ``format``, ``batch`` and ``timeout_s``; see :meth:`edgert.stages.source.api.ApiSource.buffer`.

        Returns:
            A :class:`~edgert.stages.source.user_memory.Buffer`: fill its ``array``. It goes back when the frame is let
            go; without being submitted, when it is released, dropped, or left by ``with``.

        Raises:
            StageError: no such source, shape or format, none came back in time, or the pipeline has ended.
            DeviceError: too little memory.
        """
        return self._api_source(stage).buffer(shape, **options)

    def start(self) -> None:
        """Starts all threads, once; further calls do nothing. Raises StageError for a pipeline that is called."""
        with self._tapping:
            self._refuse_called("started")
            if not self._started:
                self._started = True
                for name in filter(lambda name: name.startswith("edgert"), [*logging.root.manager.loggerDict]):
                    logging.getLogger(name).addFilter(printable_record)
                self._runner.start()
                self._show()

    def run(self) -> Summary:
        """Run until the sources end, once; return the summary.

        Interrupted by Ctrl-C, it closes the pipeline before KeyboardInterrupt goes on.

        Raises:
            StageError: it ran already, or was closed.
            EdgertError: the first error of any stage.
        """
        with self._tapping:
            if self._ran or self._assembly.closed:
                fix = "make another Pipeline of the file; summary() has what this one came to"
                raise StageError("this pipeline ran already", why="its threads and files are gone", fix=fix)
            self._refuse_own("run")
            self._ran = True
        try:
            self.start()
            self.wait()
        except EdgertError:
            raise
        except BaseException:  # Ctrl-C in a program without a with block: files end whole, and GPU threads end
            self.close()
            raise
        return self.summary()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits ``timeout`` seconds for the end; whether it came.

        Raises the first error of any stage; StageError where one of its own stages or callbacks waits.
        """
        self._refuse_called("waited for")
        self._refuse_own("waited for")
        try:
            return self._runner.wait(timeout)
        finally:
            self._leave()

    def stop(self) -> None:
        """Asks the sources to end and returns at once; files are closed within 2 s."""
        self._runner.stop()

    def close(self) -> None:
        """Stops, waits for all threads, and frees models and memory at once, those of a GPU too. Twice is once.

        A stage or callback of its own that calls it stops the pipeline, which is closed once the call has returned. In
        a forked child it does nothing: threads, files and devices are the parent's.

        Raises the first error of any stage.
        """
        if os.getpid() != self._process:
            return
        if self._started and works_for(self._runner.stop_event):
            self._runner.stop()
            threading.Thread(target=self._close_later, name="edgert:close", daemon=True).start()
            return
        with self._closing:
            self._close()

    def _close_later(self) -> None:
        try:
            self.close()
        except EdgertError as error:  # whoever waits for the pipeline gets it as well
            _LOG.debug("%s", error)

    def _close(self) -> None:
        try:
            if self._calling is not None:
                self._calling.close()
            with self._tapping:  # a start under way in another thread is waited for
                began = self._started or self._calling is not None
            if began:
                self._runner.shut_down()
        finally:
            self._leave()
            called = self._calling is not None and self._calling.is_left
            _OPEN.discard(self)
            if not (self._runner.left or called):  # nobody frees memory under a call that goes on
                self._assembly.close()
            self._runner.let_go()
            self._beacon = Beacon(dict)

    def results(self, stage: str, timeout: float | None = None) -> Results:
        """An iterator over a stage's results, from now on.

        On live sources it yields the newest result and skips what it is too slow for; on files it yields every one,
        and the pipeline waits for it. A result's frame is lent until the next one is asked for; arrays that outlive
        that stay as they are. A drawn image is an array of the host, a frame is where it is.

        Args:
            stage: name of a stage that passes something on.
            timeout: seconds to wait for each result.

        Raises:
            StageError: no such stage. While iterating: :class:`ResultTimeout`, or the first error of any stage.
        """
        # The reader stands outside the pipeline and takes results itself, but a node needs work.
        tap = Node(f"results of {stage}", CallbackSink(self._known(stage), lambda result: None))
        live = self._assembly.live
        with self._tapping:
            self._refuse_called("listened to")
            node = self._assembly.listen(stage, tap, 1 if live else _TAP_QUEUE, "oldest" if live else "never")
            self._taps.append(tap)
            self._assembly.settle(self._taps)
        self._runner.listen(tap.inlet)
        self.start()
        if not self._runner.is_working(node):
            tap.inlet.channels[0].close()
        return Results(tap, stage, timeout, self._runner, partial(self._leave_tap, node, tap))

    def _leave_tap(self, node: Node, tap: Node) -> None:
        """Undo what :meth:`results` did."""
        with self._tapping:
            disconnect(node, tap)
            self._taps = [other for other in self._taps if other is not tap]
            self._assembly.settle(self._taps)

    def submit(self, array: Any, stage: str | None = None, **options: Any) -> None:
        """Pushes an image, or a batch of them, into a ``source: api`` stage, without copying it.

        Args:
            array: (height, width, 3) uint8, or anything with ``__array_interface__`` or DLPack; (number, height, width,
                3) is a batch. It belongs to the pipeline until its results are out: do not change it before.
            stage: which source, where there are several.
            options: see :meth:`edgert.stages.source.api.ApiSource.submit`.

        Raises:
            StageError: no such source, not an image, or the pipeline has ended.
        """
        source = self._api_source(stage)
        if not self._started:
            self.start()
        source.submit(array, **options)

    def finish(self, stage: str | None = None) -> None:
        """Ends a ``source: api`` stream: what was submitted is still worked on, then the pipeline ends."""
        self._refuse_called("finished")
        self._api_source(stage).finish()

    def summary(self) -> Summary:
        """The state of the run so far, or of the whole run once it ended."""
        runner, assembly = self._runner, self._assembly
        end_ns = runner.ended_ns or self._environment.clock.now_ns()
        engines = {name: dict(engine.info) for name, engine in assembly.engines.items()}
        wall_ns = end_ns - runner.started_ns if self._started or self._calling is not None else 0
        counts, rss = assembly.counter.read(), peak_rss_bytes()
        budgets, footprint = dict[str, Any](), self._footprint
        if self._watch is not None:  # what was done to keep them, and memory beside its plan
            throttled = sum(node.limiter.throttled for node in assembly.nodes if node.limiter is not None)
            budgets = {"governor": asdict(self._watch.report()), "throttled": throttled}
            if (used := self._watch.observer.used) is not None:
                budgets["used"] = asdict(used)
            if footprint is not None:
                measured = {"measured_bytes": rss, "more_bytes": rss - footprint.total_bytes}
                budgets["memory"] = {**footprint.to_json(), **measured, "nvmap_bytes": self._watch.observer.nvmap_bytes}
        about, recent = (budgets, assembly.frames, assembly.tracks), self._history.recent(runner.ended_ns or None)
        events = self._over_current.since_start() if self._over_current is not None else {}
        state = (assembly.nodes, wall_ns, counts, rss, engines, *about)
        left_out = {name: check.left_out for name, check in assembly.checks.items() if check.left_out}
        return summarize(*state, recent=recent, over_current=events, left_out=left_out)

    def state(self) -> dict[str, Any]:
        """The summary as plain data and more.

        Returns:
            Without secrets: the summary, the pipeline's ``name``, when it was started (``started_s``, since 1970; None
            before), its budgets as ``promised``, and the sources without whose frames it is not ready as ``required``.
        """
        config = self.file.config
        required = [name for name, stage in config.stages.items() if getattr(stage, "required", False)]
        promised = config.budgets.model_dump(exclude_none=True)
        about = {"name": config.name, "started_s": self._started_s, "promised": promised, "required": required}
        return {**about, **self.summary().to_json()}

    def _detailed(self) -> dict[str, Any]:
        """The state with what only metrics are made of: counts, and folders that are written to."""
        paths = {name: getattr(stage, "path", None) for name, stage in self.file.config.stages.items()}
        folders = {name: str(fixed_folder(path)) for name, path in paths.items() if isinstance(path, Path)}
        return {**self.state(), "totals": totals(self._assembly.nodes), "folders": folders}

    def _refuse_own(self, done: str) -> None:
        if works_for(self._runner.stop_event):
            why, fix = "it ends only after this call has returned", "call stop() or close(), and wait elsewhere"
            raise StageError(f"a pipeline was {done} by one of its own stages", why=why, fix=fix)

    def _refuse_called(self, done: str) -> None:
        if self._calling is not None:
            why, fix = "its stages run in the thread of whoever calls it", "make another Pipeline of the file"
            raise StageError(f"a pipeline that is called cannot be {done}", why=why, fix=fix)

    def _called(self) -> Calling:
        """What calls the stages; the first time, instead of starting them."""
        with self._tapping:
            if self._started or self._taps or self._assembly.closed:
                how = "has ended" if self._assembly.closed else "was started"
                fix = "submit frames and take results(…), or make another Pipeline of the file"
                raise StageError(f"a pipeline that {how} cannot be called", fix=fix)
            if self._calling is None:
                from edgert.assemble.calling import Calling

                self._calling = Calling(self.file, self._assembly, self._runner)
                self._assembly.hooks.on_left = lambda: None  # whoever calls still looks at the results
                self._runner.started_ns = self._environment.clock.now_ns()
                self._show()
            return self._calling

    def _show(self) -> None:
        """Begins what is beside the stages."""
        _OPEN.add(self)
        self._started_s, self._over_current = time.time(), OverCurrent()
        if self._watch is not None:
            self._watch.start()
        if self._calling is None:
            self._history.start()
        self._beacon.open()

    def _leave(self) -> None:
        """Ends what is beside the stages, once they have ended."""
        with self._tapping:  # whoever starts it has begun all of that by then
            if self._runner.running:
                return
        if self._watch is not None:
            self._watch.stop()
        self._history.stop()
        self._beacon.close()

    def _known(self, stage: str) -> str:
        """The stage; raises StageError where there is none of that name."""
        names = list(self._assembly.ends)
        if stage not in names:
            raise StageError(f"no stage {stage!r}{nearest(stage, names)}", fix=f"stages: {', '.join(names)}")
        return stage

    def _api_source(self, stage: str | None) -> ApiSource:
        found = self._fed
        if stage is None and len(found) == 1:
            return next(iter(found.values()))
        if stage not in found:
            raise StageError(
                f"no api source {stage!r}" if stage else "which source?",
                why=f"this pipeline's api sources: {', '.join(found) or 'none'}",
                fix="add a stage like camera: {source: api}" if not found else "name one of them",
            )
        return found[stage]


class Results(Iterator[Result]):
    """See :meth:`Pipeline.results`. Close it, use it as a context manager, or drop it, to stop listening early.

    Several threads may read: each result is one thread's, lent until that thread asks again, and all of them end.
    """

    def __init__(
        self, tap: Node, stage: str, timeout_s: float | None, runner: Runner, leave: Callable[[], None]
    ) -> None:
        self._tap, self._stage, self._timeout_s, self._runner, self._leave = tap, stage, timeout_s, runner, leave
        self._held, self._turn = dict[int, Result](), threading.Lock()
        self._downloader = Downloader()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Result:
        self._release(self._held.pop(threading.get_ident(), None))
        if not self._turn.acquire(timeout=-1 if self._timeout_s is None else self._timeout_s):
            raise self._late()
        try:
            item = self._tap.inlet.get(self._timeout_s)
            while item is not None and not has_pixels(item[1].frame):  # it was under way before somebody listened
                item = self._tap.inlet.get(self._timeout_s)
            if item is None:
                self._runner.raise_error()
                raise StopIteration
            held = self._held[threading.get_ident()] = self._downloader.with_image(item[1])
            return held
        except queue.Empty:
            self._runner.raise_error()
            raise self._late() from None
        finally:
            self._turn.release()

    def _late(self) -> ResultTimeout:
        return ResultTimeout(
            f"no result from {self._stage!r} within {self._timeout_s} s",
            fix="ask with a longer timeout, or look at pipeline.summary() for the stage that lags",
        )

    def close(self) -> None:
        """Stops listening: the pipeline no longer waits for this reader."""
        while self._held:
            self._release(self._held.popitem()[1])
        self._runner.forget(self._tap.inlet)
        self._leave()

    @staticmethod
    def _release(held: Result | None) -> None:
        if held is not None:
            held.frame.lease.release()
