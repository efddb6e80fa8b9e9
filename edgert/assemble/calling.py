"""A pipeline that is called: each call takes frames through all stages in the caller's thread and returns results."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from edgert.assemble.graph import Assembly
from edgert.config import PipelineFile, SinkStage, flow
from edgert.errors import EdgertError, StageError
from edgert.runtime import Frame, Result, Runner, in_place
from edgert.runtime.recovery import STOPS
from edgert.stages.gpu.download import Downloader
from edgert.stages.gpu.infer_gpu import Collect
from edgert.stages.infer import InferBatch, Pinned
from edgert.stages.sink.results import CallbackSink
from edgert.stages.source.api import ApiSource, give_back


class Calling:
    """One pipeline's calls, one at a time; a thread that calls while another does waits for it.

    Args:
        runner: of the pipeline, whose threads were not started: it takes errors, and knows when to stop.

    Raises:
        StageError: the pipeline cannot be called.
    """

    def __init__(self, file: PipelineFile, assembly: Assembly, runner: Runner) -> None:
        nodes, stages = assembly.nodes, file.config.stages
        why, fix = flow.why_not_called(
            stages, [node.name.split(":")[0] for node in nodes if isinstance(node.work, Pinned)]
        )
        if why:
            raise StageError("this pipeline cannot be called", why=why, where=file.config.name, fix=fix)
        (self._source,) = (node.work for node in nodes if isinstance(node.work, ApiSource))
        for node in nodes:
            if isinstance(node.work, InferBatch):
                node.work.wait_for_flush()
        for inference in assembly.inferences:
            inference.sleeps = False  # the caller has nothing else to do
        sinks = {node.name for node in nodes if isinstance(stages.get(node.name), SinkStage)}
        sinks |= {node.name for node in nodes if isinstance(node.work, CallbackSink)}
        for node in nodes:
            if isinstance(node.work, CallbackSink) and not node.care.at_start:
                node.care = STOPS  # who calls gets what a function of his own raises, unless the file says otherwise
        waiting = [node for node in nodes if isinstance(node.work, Collect)]
        self._in_place = in_place.InPlace(nodes, runner.clock, runner.stop_event, sinks, waiting)
        self._downloader, self._runner = Downloader(), runner
        self._turn, self._caller = threading.Lock(), 0
        self._lent: list[Frame] = []
        self._is_open = False

    def __call__(self, arrays: Sequence[Any], options: dict[str, Any]) -> list[Result]:
        """The results of these frames, whose pixels are lent until the next call.

        Args:
            arrays: see :meth:`~edgert.stages.source.api.ApiSource.submit`, as ``options``.

        Raises:
            EdgertError: what is not an image leaves all as it was; an error of a stage ends the pipeline.
        """
        self._refuse_own("called")
        with self._turn:
            self._caller = threading.get_ident()
            try:
                self._runner.raise_error()
                if self._runner.stopping:
                    raise in_place.EndOfFrames("no more frames are taken", why="the pipeline has ended")
                return self._results(arrays, options)
            finally:
                self._caller = 0

    def close(self) -> EdgertError | None:
        """Waits for a call under way, lets go of frames, closes all stages; returns the first error."""
        self._refuse_own("closed")
        with self._turn:
            self._release()
            return self._in_place.close()

    def _refuse_own(self, done: str) -> None:
        if self._caller == threading.get_ident():
            why = "the call that the stage is part of has not returned yet"
            raise StageError(f"a pipeline was {done} by one of its own stages", why=why)

    def _results(self, arrays: Sequence[Any], options: dict[str, Any]) -> list[Result]:
        images = list[tuple[Any, Any]]()
        try:
            for array in arrays:
                images.append((array, self._source.image(array, **options)))
        except EdgertError:
            for pair in images:
                give_back(*pair)
            raise
        self._release()
        left = iter(images)
        try:
            if not self._is_open:
                self._in_place.open()
                self._is_open = True
            results = self._in_place.run(partial(self._source.put, *pair) for pair in left)
        except BaseException as error:
            for pair in left:
                give_back(*pair)
            if isinstance(error, EdgertError) and not isinstance(error, in_place.EndOfFrames):
                self._runner.fail(error)
                self._runner.raise_error()
            self._runner.stop()  # also where somebody pressed Ctrl-C: stages are left in the middle of a frame
            raise
        self._lent = [result.frame for result in results]
        return [self._downloader.with_image(result) for result in results]

    def _release(self) -> None:
        lent, self._lent = self._lent, []
        for frame in lent:
            frame.lease.release()
        self._source.settle()
