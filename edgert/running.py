"""State of one pipeline from its assembly to its end, behind the methods of :class:`edgert.Pipeline`."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, WeakSet

from edgert.clock import Clock
from edgert.config import PipelineConfig, PipelineFile
from edgert.errors import DeviceError, EdgertError, StageError, nearest, printable_record
from edgert.meters import peak_rss_bytes
from edgert.meters.over_current import OverCurrent
from edgert.policy import Drop
from edgert.result_reader import Tap
from edgert.runtime import Execution, Runner, Summary, Task, summarize
from edgert.runtime.recent import History, totals
from edgert.runtime.summary import RunNotes
from edgert.runtime.thread_loop import runs_pipeline_of
from edgert.stages.python import check_function
from edgert.stages.sink.results import CallbackSink
from edgert.stages.sink.retention import fixed_folder
from edgert.stages.source.api import ApiSource
from edgert.tracing import ThreadEvents, Tracing

if TYPE_CHECKING:  # assembling imports half of edgert: a GPU starts meanwhile; most pipelines have no budgets
    from edgert.assemble import Callback, Environment
    from edgert.assemble.calling import Calling
    from edgert.assemble.governing import Governing
    from edgert.budget.footprint import Footprint
    from edgert.control.control_socket import ControlSocket
    from edgert.control.operations import Control
    from edgert.swap.model_swap import ModelSwap
    from edgert.timeline.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
_TAP_QUEUE = 4
_OPEN: WeakSet[Running] = WeakSet()
"""Pipelines that were started or called, and are not closed."""


@atexit.register
def _close_all() -> None:
    """Close pipelines that the program left open, while Python can still wait for threads.

    A thread that Python ends later may be in a call of the CUDA driver. PyCUDA then aborts the process, because a
    thread ends within a context (https://documen.tician.de/pycuda/driver.html).
    """
    for running in list(_OPEN):
        try:
            running.close()
        except EdgertError as error:
            _LOG.warning("%s, closed at the end of the program: %s", running.file.config.name, error)


class Running:
    """State of a running :class:`edgert.Pipeline`.

    Args:
        environment: clock, engines, meters and all else that differs between machines.
        file: the pipeline.
        before_planning: function called before the free memory is read.

    Attributes:
        file: the pipeline as it runs: reduced to fit its memory budget and this machine.
        assembly: connected stages and their engines.
        runner: threads of the pipeline.
        sources: ``source: api`` stages by name; the only one under None, too.
        turn: lock of starting, calling and connecting a reader.
        calling: calls of the pipeline; None unless it is called instead of started.
        started: whether its threads were started.
        changing: lock that is held while the pipeline is changed.
        swaps: model → its newest swap.
        tracing: recorder of what its threads do.
        written: configuration as written, without adaptations to this machine; None where only the document is known.
    """

    def __init__(
        self,
        environment: Environment,
        file: PipelineFile,
        before_planning: Callable[[], object] = bool,
    ) -> None:
        from edgert.assemble import assemble
        from edgert.assemble.memory import fit_memory, fits_easily
        from edgert.videos import only_video

        self.file = file = only_video(file)
        self._environment = environment
        self._footprint: Footprint | None = None
        if file.config.budgets.memory is not None or not fits_easily(file):
            before_planning()  # it ends the start of a GPU's context, whose memory would be counted as used
            self.file, self._footprint = fit_memory(file, has_engines=bool(self.prepared_why))
        self.assembly = assemble(self.file, environment)
        self._log_precision()
        self.tracing = Tracing(self.assembly.graph.record, environment.clock.now_ns)
        self.sources = self._api_sources()
        self._has_taps, self.turn = False, threading.RLock()
        self.changing, self._has_frozen, self._unfreezes = threading.Lock(), False, False
        self.swaps: dict[str, ModelSwap] = {}
        self._socket: ControlSocket | None = None
        self.written: PipelineConfig | None = None
        self.started = False
        self._started_s: float | None = None
        self._over_current: OverCurrent | None = None
        self.calling: Calling | None = None
        self._process, self._closing = os.getpid(), threading.RLock()
        try:
            self.runner = runner = self._make_runner()
            graph = self.assembly.graph

            def began_ns() -> int:
                return runner.started_ns or environment.clock.now_ns()

            self.history = History(lambda: graph.tasks, environment.clock, began_ns)
            services = WeakMethod(self._stop_services)  # the supervisor keeps no pipeline alive that nobody closes
            runner.on_end = lambda: stop() if (stop := services()) else None
            self._set_hooks()
            self._governing: Governing | None = None
            if self._has_budgets(self.file):
                self._governing = self._make_governing()
                self._governing.prepare_change(self.file)()
            self._telemetry = self._make_telemetry()
        except BaseException:
            self.assembly.close()  # its engines may hold the memory of a GPU
            raise

    def _make_runner(self) -> Runner:
        """Connect the callbacks, and return the runner of all tasks. Raises StageError: no such stage."""
        from edgert.runtime.inline_loop import share_threads

        for stage, function in self._environment.callbacks.items():
            if getattr(self.file.config.stages.get(stage), "sink", None) != "callback":
                self._add_callback(stage, function)
        share_threads(self.assembly.tasks)
        self._environment.paced(self.assembly.tasks)
        return Runner(self.assembly.graph, self._environment.clock, self.file.located)

    def _set_hooks(self) -> None:
        """Give stages access to this run."""
        from edgert.assemble.recording_head import recorded_about

        hooks = self.assembly.hooks
        hooks.stats, hooks.about = self._state_for_metrics, lambda: recorded_about(self.file, self.assembly)
        hooks.control = lambda line, who: self.control.answer(line, who)
        if not any(isinstance(task.stage, CallbackSink) for task in self.assembly.tasks):
            hooks.on_no_viewers = self.runner.stop_unless_listened_to

    def _log_precision(self) -> None:
        precision = {name: engine.info.get("precision") for name, engine in self.assembly.engines.items()}
        open_models = [name for name, model in self.file.config.models.items() if model.precision == "auto"]
        if chosen := [f"{name} {precision[name]}" for name in open_models if precision.get(name)]:
            _LOG.info("precision: auto is %s", ", ".join(chosen))

    def _add_callback(self, stage: str, function: Callback) -> None:
        self._check_stages([stage])
        called = check_function(f"the callback of {stage!r}", function, {}, f"stages.{stage}")
        sink, execution = CallbackSink(stage, called), Execution(reads="host")
        listener = Task(f"callback of {stage}", sink, execution=execution, policy=self.assembly.listener)
        drop: Drop = "oldest" if self.assembly.live else "never"
        self.assembly.listen(stage, listener, _TAP_QUEUE, drop)
        self.assembly.graph.add(listener)

    @staticmethod
    def _has_budgets(file: PipelineFile) -> bool:
        budgets = file.config.budgets
        return budgets != type(budgets)()

    def _make_governing(self) -> Governing:
        from edgert.assemble.governing import Governing

        return Governing(self.assembly, self._environment, self.runner.fail)

    def start(self) -> None:
        """Start all threads, once. Raises StageError for a pipeline that is called."""
        with self.turn:
            self.refuse_called("started")
            if not self.started:
                self._refuse_closed()
                self.started = True
                for name in filter(lambda name: name.startswith("edgert"), [*logging.root.manager.loggerDict]):
                    logging.getLogger(name).addFilter(printable_record)
                self.runner.start()
                self._start_services()

    def call(self) -> Calling:
        """Return the calls of this pipeline, which replace its threads; the first call makes them.

        Raises:
            StageError: it was started, has ended, or cannot be called.
        """
        with self.turn:
            if self.started or self._has_taps or self.assembly.closed:
                how = "has ended" if self.assembly.closed else "was started"
                fix = "submit frames and take results(…), or make another Pipeline of the file"
                raise StageError(f"a pipeline that {how} cannot be called", fix=fix)
            if self.calling is None:
                from edgert.assemble.calling import Calling

                self.calling = Calling(self.file, self.assembly, self.runner)
                self.assembly.hooks.on_no_viewers = lambda: None  # the caller still looks at the results
                self.runner.started_ns = self._environment.clock.now_ns()
                self._start_services()
            return self.calling

    def tap(self, stages: Sequence[str], *, newest_only: bool = False) -> Tap:
        """Connect a reader to stages, and start the threads.

        Args:
            stages: names of stages that pass something on.
            newest_only: whether older results are dropped also where the sources are files.

        Raises:
            StageError: a stage does not exist, none is named, or the pipeline is called or has ended.
        """
        if not stages:
            raise StageError("no stage is named", fix=f"stages: {', '.join(self.assembly.ends)}")
        if others := [one for one in stages if not isinstance(one, str)]:
            fix = "results('find', 'track') takes the names one by one"
            raise StageError(f"{others[0]!r} is not the name of a stage", fix=fix)
        self._check_stages(stages)
        # The reader is outside the pipeline and takes results itself, but a task needs a stage.
        task = Task(f"results of {', '.join(stages)}", CallbackSink(stages[0], lambda result: None))
        with self.turn:
            self.refuse_called("listened to")
            self._refuse_closed()
            skips = newest_only or self.assembly.live
            queue: tuple[int, Drop] = (1, "oldest") if skips else (_TAP_QUEUE, "never")
            for stage in stages:
                self.assembly.listen(stage, task, *queue)
            self._has_taps = True
        self.runner.listen(task.wiring.inlet)
        self.start()
        for producer, channel in task.wiring.edges():
            if not self.runner.is_working(producer):
                channel.close()
        return Tap(task, stages, self.runner, partial(self.assembly.graph.leave, task))

    def _check_stages(self, stages: Sequence[str]) -> None:
        """Raise StageError for the first stage that does not exist."""
        names = list(self.assembly.ends)
        for stage in stages:
            if stage not in names:
                raise StageError(f"no stage {stage!r}{nearest(stage, names)}", fix=f"stages: {', '.join(names)}")

    def wait(self, timeout: float | None) -> bool:
        """Return whether it has ended within ``timeout`` seconds. Raises the first error of any stage."""
        self.refuse_called("waited for")
        self.refuse_own_stages("waited for")
        if not (self.started or self.assembly.closed):
            raise StageError("a pipeline that was not started cannot be waited for", fix="call start() first, or run()")
        try:
            return self.runner.wait(timeout)
        finally:
            self._stop_services()

    def close(self) -> None:
        """Stop, wait for all threads, and free models and memory. Raises the first error of any stage."""
        if os.getpid() != self._process:
            return
        if self.started and runs_pipeline_of(self.runner.stop_event):
            self.runner.stop()
            threading.Thread(target=self._close_later, name="edgert:close", daemon=True).start()
            return
        with self._closing:
            self._close()

    def _close_later(self) -> None:
        try:
            self.close()
        except EdgertError as error:  # wait() raises it as well
            _LOG.debug("%s", error)

    def _close(self) -> None:
        try:
            if self.calling is not None:
                self.calling.close()
            with self.turn:  # wait for a start in another thread
                began = self.started or self.calling is not None
            if began:
                self.runner.shut_down()
        finally:
            self._stop_services()
            has_stuck_call = self.calling is not None and self.calling.is_left
            _OPEN.discard(self)
            for swap in self.swaps.values():
                swap.close()
            if not (self.runner.has_stuck_threads or has_stuck_call):  # they still use the memory
                self.assembly.close()
            self.runner.release_threads()
            if self._unfreezes and not any(one._unfreezes for one in _OPEN):
                gc.unfreeze()
            self.__dict__.pop("control", None)

    def summary(self) -> Summary:
        """Return the state of the run so far, or of the whole run once it ended."""
        runner, assembly = self.runner, self.assembly
        end_ns = runner.ended_ns or self._environment.clock.now_ns()
        simulated = {"simulated": self.label} if self.label else {}
        engines = {name: {**engine.info, **simulated} for name, engine in assembly.engines.items()}
        wall_ns = end_ns - runner.started_ns if self.started or self.calling is not None else 0
        counts, rss = assembly.counter.read(), peak_rss_bytes()
        events = self._over_current.since_start() if self._over_current is not None else {}
        left_out = {name: check.left_out for name, check in assembly.checks.items() if check.left_out}
        about = engines, self._budgets(rss), RunNotes(assembly.frames, assembly.tracks, events, left_out)
        recent = self.history.recent(runner.ended_ns or None)
        return summarize(assembly.tasks, wall_ns, counts, rss, *about, assembly.graph.removed_frames, recent=recent)

    def governor_events(self) -> Sequence[ThreadEvents]:
        """Return the governor's actions so far, for a trace; empty without budgets."""
        return () if self._governing is None else self._governing.trace_events()

    def _budgets(self, rss_bytes: int) -> dict[str, Any]:
        """Return the governor's report, and the measured use of memory and other budgets."""
        governor = None if self._governing is None else self._governing.report()
        if self._governing is None or governor is None:
            return {}
        limiters = (task.execution.limiter for task in self.assembly.tasks)
        throttled = self.assembly.graph.removed_throttled + sum(one.throttled for one in limiters if one is not None)
        found: dict[str, Any] = {"governor": asdict(governor), "throttled": throttled}
        observer, footprint = self._governing.observer, self._footprint
        if observer is not None and (used := observer.used) is not None:
            found["used"] = asdict(used)
        if footprint is not None:
            measured = {"measured_bytes": rss_bytes, "more_bytes": rss_bytes - footprint.total_bytes}
            found["memory"] = {**footprint.to_json(), **measured, "nvmap_bytes": observer and observer.nvmap_bytes}
        return found

    def state(self) -> dict[str, Any]:
        """Return the summary as plain data; see :meth:`edgert.Pipeline.state`."""
        config = self.file.config
        required = [name for name, stage in config.stages.items() if getattr(stage, "required", False)]
        promised = config.budgets.model_dump(exclude_none=True)
        about = {"name": config.name, "started_s": self._started_s, "promised": promised, "required": required}
        return {**about, **self.summary().to_json()}

    def _state_for_metrics(self) -> dict[str, Any]:
        """Return the state, with total counts and the folders of sinks, which only metrics need."""
        paths = {name: getattr(stage, "path", None) for name, stage in self.file.config.stages.items()}
        folders = {name: str(fixed_folder(path)) for name, path in paths.items() if isinstance(path, Path)}
        return {**self.state(), "totals": totals(self.assembly.tasks), "folders": folders}

    @property
    def clock(self) -> Clock:
        """Clock of the run."""
        return self._environment.clock

    @property
    def label(self) -> str:
        """Note on figures that are not this machine's; empty for none."""
        return self._environment.label

    @cached_property
    def control(self) -> Control:
        """Operations that change the pipeline while it runs."""
        from edgert.control.operations import Control

        return Control(self)

    @property
    def prepared_why(self) -> str:
        """Why its file is not the user's, as part of an error; empty where it is."""
        if self.label:
            return "it emulates a board"
        return "" if self._environment.engines is None else "it runs from a bundle"

    def prepare_budgets(self, file: PipelineFile) -> Callable[[], None]:
        """Check a changed pipeline's budgets; return a function that applies them.

        See :meth:`.Controlled.prepare_budgets`.
        """
        from edgert.assemble.memory import check_room

        plan, governing = check_room(self.file, file, self._footprint), self._governing
        if governing is None and self._has_budgets(file):
            governing = self._make_governing()
        change = governing.prepare_change(file) if governing is not None else None

        def apply() -> None:
            if change is not None:
                change()
            with self.turn:  # a start in another thread either starts this governor or has set _started_s
                is_new, self._governing = self._governing is not governing, governing
                if is_new and governing is not None and self._started_s is not None:
                    governing.start()
            self._footprint = plan or self._footprint

        return apply

    @property
    def has_ended(self) -> bool:
        """Whether it has ended or is ending."""
        return self.assembly.closed or self.runner.is_stopping or (self.started and not self.runner.is_running)

    def check_changeable(self) -> None:
        """Raise StageError if the pipeline is ending, is called, or one of its own stages asks for the change."""
        self.refuse_called("changed")
        if self.has_ended:
            raise StageError("a pipeline that has ended cannot be changed")
        if runs_pipeline_of(self.runner.stop_event):
            why, fix = "a change waits for the stages", "change it from another thread"
            raise StageError("a pipeline was changed by one of its own stages", why=why, fix=fix)

    def shorten_collections(self) -> None:
        """Leave present objects out of garbage collections until the end: a full one stops all threads for 50 ms.

        Those that the program had left out itself stay out, and with them those of the pipeline: it is all or none.
        """
        if not self._has_frozen:
            self._unfreezes = not gc.get_freeze_count() or any(one._unfreezes for one in _OPEN)
            gc.freeze()
            self._has_frozen = True

    def set_file(self, file: PipelineFile, written: PipelineConfig | None = None) -> None:
        """Set the file that describes the pipeline from now on; ``written`` as in the attribute."""
        self.file, self.written = file, written
        self.sources = self._api_sources()
        self.record_file(file)

    def record_file(self, file: PipelineFile) -> None:
        """Write to recordings that stages which were replaced since the last call are those of this file."""
        from edgert.assemble.recording_head import written_pipeline

        if (journal := self.assembly.journal) is not None:
            journal.add("file", "", "", -1, self.clock.now_ns(), written_pipeline(file))

    def _api_sources(self) -> dict[str | None, ApiSource]:
        found = [(task.name, task.stage) for task in self.assembly.tasks if isinstance(task.stage, ApiSource)]
        return dict([*found, (None, found[0][1])] if len(found) == 1 else found)

    def refuse_own_stages(self, action: str) -> None:
        """Raise StageError in a thread of the pipeline; ``action`` is a participle for the message."""
        if runs_pipeline_of(self.runner.stop_event):
            why, fix = "it ends only after this call has returned", "call stop() or close(), and wait elsewhere"
            raise StageError(f"a pipeline was {action} by one of its own stages", why=why, fix=fix)

    def refuse_called(self, action: str) -> None:
        """Raise StageError if the pipeline is called; ``action`` is a participle for the message."""
        if self.calling is not None:
            why, fix = "its stages run in the thread that calls it", "make another Pipeline of the file"
            raise StageError(f"a pipeline that is called cannot be {action}", why=why, fix=fix)

    def _refuse_closed(self) -> None:
        """Raise StageError where the pipeline was closed."""
        if self.assembly.closed:
            raise StageError("this pipeline was closed", fix="make another Pipeline of the file")

    def _start_services(self) -> None:
        """Start the governor, history, control socket and telemetry, which run beside the stages."""
        _OPEN.add(self)
        self._started_s, self._over_current = time.time(), OverCurrent()
        if self._governing is not None:
            self._governing.start()
        if self.calling is None:
            self.history.start()
        self._socket = self._open_socket()
        if self._telemetry is not None:
            self._telemetry.start()

    def _make_telemetry(self) -> Telemetry | None:
        """Return the exporter of spans if the file or the environment asks for it. Raises ConfigError."""
        url = self.file.config.telemetry
        if url is None and not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
            return None
        from edgert.timeline.telemetry import telemetry_of

        with self.file.locating("telemetry"):
            return telemetry_of(url, self.tracing, self.file.config.name)

    def _open_socket(self) -> ControlSocket | None:
        """Return an open socket for ``edgert ctl`` and ``top``; None, with a warning, if it cannot be opened."""
        from edgert.control.control_socket import ControlSocket

        try:
            made = ControlSocket(self.file.config.name, self.control.perform)
            made.open()
        except (DeviceError, OSError) as error:
            what = f"{error.what}: {error.why}" if isinstance(error, DeviceError) else str(error)
            _LOG.warning("edgert ctl and top cannot reach this run: %s", what)
            return None
        return made

    def _stop_services(self) -> None:
        """Stop what :meth:`_start_services` started, unless stages still run."""
        with self.turn:  # wait for a start in another thread
            if self.runner.is_running:
                return
            socket, self._socket = self._socket, None
        if self._governing is not None:
            self._governing.stop()
        self.history.stop()
        if socket is not None:
            socket.close()
        if self._telemetry is not None:
            self._telemetry.close()
