"""The Python API for robots: a pipeline file as an object.

with edgert.Pipeline("dock.yaml") as pipeline:
    for result in pipeline.results("find", timeout=1.0):
        steer(result.detections.boxes, result.timestamp_ns)

Or, where the program brings the frames and waits for each result: ``steer(pipeline(frame).detections.boxes)``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edgert.board.devices import gpu_started
from edgert.config import PipelineFile, PipelineSource, load_pipeline
from edgert.config.engine_choice import TENSORRT
from edgert.errors import EdgertError, StageError
from edgert.reporter import OnProgress
from edgert.result_reader import NewestResult, Results, ResultTimeout, checked_timeout, stream
from edgert.running import Running
from edgert.runtime import PixelFormat, Result, Summary
from edgert.stages.source.api import ApiSource, is_batch_input
from edgert.stages.source.user_memory import Buffer

if TYPE_CHECKING:  # assembling imports half of edgert: a GPU starts meanwhile
    from edgert.assemble import Callback, Environment
    from edgert.control.operations import Control

__all__ = ["Pipeline", "ResultTimeout", "Results", "pipeline_in"]

_LOG = logging.getLogger(__name__)


class Pipeline(AbstractContextManager["Pipeline"]):
    """A pipeline, from its file to the end of its last thread.

    Threads start with the first call of :meth:`start`, :meth:`run`, :meth:`results`, :meth:`latest` or :meth:`submit`.
    A pipeline that is itself called, ``pipeline(frame)``, has none: its stages run in the caller's. Every method may be
    called from any thread. Leaving the ``with`` block stops the threads, closes files and devices, and frees the
    engines.

    Args:
        file: path of the YAML file; a mapping with the same keys, in which paths are relative to the current folder; or
            a pipeline loaded by :func:`edgert.load_pipeline`.
        overrides: ``key.path=value`` strings, as given to ``--set``; not for a loaded pipeline.
        callbacks: stage name → function called with each of that stage's results, in a thread of the pipeline; also
            the functions of ``sink: callback`` stages.
        on_progress: called while a model is calibrated, or compiled by TensorRT, which happens once, before anything
            starts. What it raises ends that and is raised here.
        strict: whether skipping an engine of ``engines:`` is an error, or without that key an engine that refuses a
            model.

    Raises:
        EdgertError: the file, a model or a stage is wrong, or a budget cannot be kept; nothing is started then.
    """

    def __init__(
        self,
        file: PipelineSource,
        *,
        overrides: Iterable[str] = (),
        callbacks: Mapping[str, Callback] | None = None,
        on_progress: OnProgress | None = None,
        strict: bool = False,
    ) -> None:
        loaded = load_pipeline(file, overrides)
        rtx = loaded.config.engines[:1] in ((), (TENSORRT,))
        with ExitStack() as gpu:
            gpu.enter_context(gpu_started(loaded.config.likely_on_gpu, rtx=rtx))
            from edgert.assemble import Environment, with_default_engines

            found, chosen = with_default_engines(loaded)
            if chosen:
                _LOG.info("%s", chosen)
            here = Environment(callbacks=callbacks or {}, on_progress=on_progress, strict=strict)
            self._set_running(Running(here, found, gpu.close))

    def _set_running(self, running: Running) -> None:
        self._running = running
        self._assembly, self._runner = running.assembly, running.runner
        self._newest = dict[str, NewestResult]()
        self._acalls: ThreadPoolExecutor | None = None
        self._ran = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EdgertError as closing_error:  # it must not hide the error that ends the block
            if error is None:
                raise
            is_new = closing_error is not error and closing_error.__context__ is not error
            if is_new and hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"while stopping: {closing_error}")
        finally:
            del error, traceback  # they refer to this frame where closing raised the same error again

    @property
    def file(self) -> PipelineFile:
        """The pipeline as it runs, with the changes that fit it into a memory budget."""
        return self._running.file

    @property
    def control(self) -> Control:
        """Operations that change the pipeline while it runs: live keys, sources, a pause.

        ``pipeline.control.set("stages.find.every", 2)`` is ``edgert ctl set stages.find.every=2``.
        """
        return self._running.control

    @property
    def running(self) -> bool:
        """Whether any stage still works; of a pipeline that is called, whether it may be called again."""
        if self._running.calling is not None:
            return not self._runner.is_stopping
        return self._running.started and self._runner.is_running

    def __call__(
        self, frame: Any, *, format: PixelFormat | None = None, timestamp_ns: int | None = None, copy: bool = False
    ) -> Result:
        """Take a frame through all stages, sinks and callbacks too, in this thread; return its result.

        For control loops: no thread and no queue is between the frame and its result. The pipeline has one source,
        ``source: api``, and is either called or started. The first call opens sinks and warms models up. Calls of
        several threads wait for each other. All frames form one stream in the order of the calls, so a tracker needs
        one pipeline per camera. A call returns when all stages are done with the frame, so nothing is ever dropped;
        where a budget leaves no room for the frame yet, it waits.

        Args:
            frame: one image, as :meth:`submit` takes it.
            format: pixel format; default: bgr, or that of a :class:`Buffer`.
            timestamp_ns: capture time by the monotonic clock; now by default.
            copy: whether to copy the pixels.

        Returns:
            The records of all stages that the frame reached. A drawn image is an array in host memory. The result's
            frame is valid until the next call; its host arrays stay valid. To keep memory of :meth:`buffer` or of a
            GPU longer, retain the frame's lease.

        Raises:
            StageError: the frame is not one image, which changes nothing; or the pipeline cannot be called, was
                started, or has ended.
            EdgertError: the first error of any stage, which ends the pipeline.
        """
        if isinstance(frame, list) or is_batch_input(frame, format):
            fix = "pipeline.call_batch(frames) takes several and returns a list"
            raise StageError("a call takes one frame", why=f"this {type(frame).__name__} is a batch", fix=fix)
        (result,) = self._running.call()([frame], {"format": format, "timestamp_ns": timestamp_ns, "copy": copy})
        return result

    def call_batch(
        self,
        frames: Any,
        *,
        format: PixelFormat | None = None,
        timestamp_ns: int | Sequence[int] | None = None,
        copy: bool = False,
    ) -> list[Result]:
        """Take several frames through all stages in this thread; return a result for each.

        A model with ``batch:`` runs them together, others one after the other. Everything else is as in
        :meth:`__call__`.

        Args:
            frames: list of images, or one array (number, height, width, 3) or :class:`Buffer` of several.
            format: as in a call, for all of them.
            timestamp_ns: one capture time for all; or, for an array, one for each.
            copy: as in a call.
        """
        arrays = frames if isinstance(frames, list) else [frames]
        return self._running.call()(arrays, {"format": format, "timestamp_ns": timestamp_ns, "copy": copy})

    def __reduce__(self) -> tuple[()]:
        """Raise StageError, because threads and engines belong to one process."""
        what, fix = "a pipeline or model cannot be copied or pickled", "make another of its file in the other process"
        raise StageError(what, why="its threads and engines belong to this process", fix=fix)

    async def acall(
        self, frame: Any, *, format: PixelFormat | None = None, timestamp_ns: int | None = None, copy: bool = False
    ) -> Result:
        """Take a frame through all stages without blocking asyncio's event loop; return its result.

        One thread of the pipeline makes these calls, in the order in which they were awaited. A canceled call
        continues there, and its result is dropped. Arguments, result and errors are those of :meth:`__call__`.
        """
        import asyncio  # it takes 40 ms, and few programs need it

        with self._running.turn:
            if self._assembly.closed:
                self._running.call()  # raises StageError
            if self._acalls is None:
                self._acalls = ThreadPoolExecutor(1, "edgert:acall")
            future = self._acalls.submit(self, frame, format=format, timestamp_ns=timestamp_ns, copy=copy)
        return await asyncio.wrap_future(future)

    def map(
        self, frames: Iterable[Any], *, format: PixelFormat | None = None, copy: bool = False
    ) -> Generator[Result, None, None]:
        """Take one frame after the other through all stages, in this thread; yield their results in order.

        For recordings, folders and datasets: ``for result in pipeline.map(frames)``. Like a call it has no threads or
        queues. A GPU gets the next frames before the last results are read, and models with ``batch:`` get full
        batches. This takes the least CPU time where a GPU runs the models. Stages on the CPU use several cores only
        with threads: :meth:`run`, :meth:`submit`.

        Args:
            frames: frames or batches as for :meth:`submit`; read a few frames ahead of the results.
            format: as in a call, for all of them.
            copy: as in a call.

        Returns:
            An iterator with a result for each frame; see :meth:`__call__`. A result's frame is valid until the next
            result is requested. When it is closed early, for example by leaving the loop, the frames it has taken
            still go through all stages. The pipeline may be called again only after that.

        Raises:
            StageError: as for a call; while iterating, if a frame is not an image.
            EdgertError: while iterating, the first error of any stage, which ends the pipeline.
        """
        return self._running.call().map(frames, {"format": format, "copy": copy})

    def buffer(
        self,
        shape: Sequence[int],
        *,
        stage: str | None = None,
        format: PixelFormat = "bgr",
        batch: int | None = None,
        timeout: float | None = None,
    ) -> Buffer:
        """Return memory for an image or batch of a ``source: api`` stage: fill it, then submit it or call with it.

        A model on a GPU reads it without a copy by the host. Without a GPU it is ordinary aligned memory. At most 48
        buffers of a size are in use at a time, frames in the pipeline included; at most 8 for batches, or more where
        these are small.

        Args:
            shape: (width, height) in pixels, or the array's: (height, width, channels).
            stage: name of the source; needed where there are several.
            format: bgr, rgb, nv12 (the array is (height * 3 / 2, width)), gray or yuyv.
            batch: number of images, the array's first dimension; None: one image without that dimension.
            timeout: seconds to wait for a free buffer; None waits until there is one.

        Returns:
            A :class:`Buffer`; fill its ``array``. It is free again when the frame is released. One that is not
            submitted is free when it is released, dropped, or left by ``with``.

        Raises:
            StageError: no such source, shape or format, no buffer was free in time, or the pipeline has ended.
            DeviceError: there is too little memory.
        """
        return self._api_source(stage).buffer(shape, format, batch, checked_timeout(timeout))

    def submit(
        self,
        array: Any,
        *,
        stage: str | None = None,
        format: PixelFormat | None = None,
        timestamp_ns: int | Sequence[int] | None = None,
        copy: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Push an image, or a batch of them, into a ``source: api`` stage, without copying it.

        Blocks while the queue is full, and loses nothing. Do not change the array until its results are out.

        Args:
            array: uint8 pixels: bgr, rgb (height, width, 3), gray (height, width), yuyv (height, width, 2), nv12
                (height * 3 / 2, width); or for i420 and nv12 the sequence of their planes. Rows may be padded; pixels
                of one row must be contiguous. Accepted are a :class:`Buffer`, and objects on the CPU with
                ``__array_interface__`` or DLPack (NumPy, PyTorch …). Where a model reads frames on a GPU, so are
                objects on that GPU with DLPack or ``__cuda_array_interface__``, read in place after the work on the
                stream that they name. One more leading dimension makes it a batch.
            stage: name of the source; needed where there are several.
            format: pixel format; default: bgr, or that of a buffer.
            timestamp_ns: capture time by the monotonic clock; now by default. For a batch one time, or a sequence with
                one for each.
            copy: whether to copy the array, so that it may change at once; not for memory on a GPU.
            timeout: seconds to wait for room; None waits until there is some.

        Returns:
            Number of frames submitted before this one, or before the first of the batch.

        Raises:
            StageError: no such source, not an image, no room in time, or the pipeline has ended.
            DeviceError: the memory is on another GPU or was released, or its stream cannot be waited for.
        """
        source, timeout_s = self._api_source(stage), checked_timeout(timeout)
        if not self._running.started:
            self.start()
        return source.submit(array, format, timestamp_ns, copy, timeout_s)

    def finish(self, stage: str | None = None) -> None:
        """End a ``source: api`` stream. Submitted frames are still processed; then the pipeline ends.

        Args:
            stage: name of the source; needed where there are several.
        """
        self._running.refuse_called("finished")
        self._api_source(stage).finish()

    def results(self, *stages: str, timeout: float | None = None) -> Results:
        """Return an iterator over the results of one or several stages, from now on.

        From live sources it yields the newest result and skips older ones; from files it yields every result, and the
        pipeline waits for the program. Results of several stages come in the order of their arrival, and
        ``result.stage`` names the stage. A result's frame is valid until the next result is requested; its host arrays
        stay valid. A drawn image is an array in host memory; a frame stays in its own memory.

        Args:
            stages: names of stages that pass something on.
            timeout: seconds to wait for each result; None waits until there is one.

        Raises:
            StageError: no such stage.
            ResultTimeout: while iterating, no result came in time; the iterator may be used further.
            EdgertError: while iterating, the first error of any stage.
        """
        timeout_s = checked_timeout(timeout)
        return Results(self._running.tap(stages), timeout_s)

    def aresults(self, *stages: str, timeout: float | None = None) -> AsyncIterator[Result]:
        """Return the iterator of :meth:`results` for asyncio: ``async for result in pipeline.aresults("track")``.

        A thread waits for results, so the event loop never does. Leaving the loop early, or canceling its task, stops
        listening. Arguments and errors are those of :meth:`results`.
        """
        return stream(partial(self._running.tap, stages), checked_timeout(timeout))

    def latest(self, stage: str, *, timeout: float | None = None) -> Result:
        """Return the newest result of a stage at once; wait only while there is none yet.

        For loops with a rate of their own: it returns the same result until there is a newer one; ``timestamp_ns``
        shows its age. The pipeline never waits for the loop, even with files. After the pipeline has ended, it still
        returns the last result. The first call starts the pipeline.

        Args:
            stage: name of a stage that passes something on.
            timeout: seconds to wait for the first result; None waits until there is one.

        Returns:
            A result whose frame is valid until the next call for this stage; its records stay valid.

        Raises:
            ResultTimeout: there was no result in time.
            StageError: no such stage; or the pipeline ended before there was a result.
            EdgertError: the first error of any stage.
        """
        timeout_s = checked_timeout(timeout)
        with self._running.turn:
            newest = self._newest.get(stage)
            if newest is None:
                newest = self._newest[stage] = NewestResult(self._running.tap([stage], newest_only=True))
        return newest.get(timeout_s)

    def start(self) -> None:
        """Start all threads, once; further calls do nothing. Raises StageError for a pipeline that is called."""
        self._running.start()

    def run(self) -> Summary:
        """Run until the sources end, once; return the summary.

        On Ctrl-C it closes the pipeline before it raises KeyboardInterrupt.

        Raises:
            StageError: it ran already, or was closed.
            EdgertError: the first error of any stage.
        """
        with self._running.turn:
            if self._ran or self._assembly.closed:
                fix = "make another Pipeline of the file; summary() has the figures of this one"
                raise StageError("this pipeline ran already", why="its threads and files are gone", fix=fix)
            self._running.refuse_own_stages("run")
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
        """Wait ``timeout`` seconds for the end; return whether it came.

        Raises the first error of any stage; StageError before the start, or in one of its own stages or callbacks.
        """
        return self._running.wait(checked_timeout(timeout))

    def stop(self) -> None:
        """Ask the sources to end and return at once; files are closed within 2 s."""
        self._runner.stop()

    def close(self) -> None:
        """Stop, wait for all threads, and free models and memory at once, on a GPU too. May be called twice.

        Called by one of its own stages or callbacks, it stops the pipeline, which is closed after that call has
        returned. In a forked child it does nothing, because threads, files and devices are the parent's.

        Raises the first error of any stage.
        """
        newest, self._newest = self._newest, {}
        try:
            self._running.close()
        finally:
            for one in newest.values():
                one.close()
            if self._acalls is not None:
                self._acalls.shutdown(wait=False)

    def summary(self) -> Summary:
        """Return the state of the run so far, or of the whole run once it ended."""
        return self._running.summary()

    def state(self) -> dict[str, Any]:
        """Return the summary as plain data and more.

        Returns:
            The summary, without secrets. Added are the pipeline's ``name``; its start ``started_s`` in seconds since
            1970, None before; its budgets, ``promised``; and the sources it needs to be ready, ``required``.
        """
        return self._running.state()

    def _api_source(self, stage: str | None) -> ApiSource:
        found = self._running.sources
        if stage not in found:
            raise StageError(
                f"no api source {stage!r}" if stage else "which source?",
                why=f"this pipeline's api sources: {', '.join(filter(None, found)) or 'none'}",
                fix="add a stage like camera: {source: api}" if not found else "name one of them",
            )
        return found[stage]


def pipeline_in(environment: Environment, file: PipelineSource) -> Pipeline:
    """Return a pipeline that runs in an environment of edgert's own, such as a bundle or an emulated board.

    Without ``engines:`` ONNX Runtime runs its models, unless the environment has engines.
    """
    made = Pipeline.__new__(Pipeline)
    made._set_running(Running(environment, load_pipeline(file)))
    return made
