"""A pipeline over many videos: run once for each, with engines that stay, and a result for every video."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgert.config import PipelineFile, PipelineSource, load_pipeline
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.pipeline import Pipeline, pipeline_in
from edgert.reporter import OnProgress
from edgert.videos import Journal, Video, videos_of

if TYPE_CHECKING:
    from edgert.assemble import Callback, Environment
    from edgert.runtime import Summary


@dataclass(frozen=True, slots=True)
class VideoResult:
    """The result of one video.

    Attributes:
        path: of the video.
        state: ``ok``; ``before``: an earlier run finished it; ``damaged``: it cannot be played to its end.
            ``incomplete``: a stage that may fail was down at its end.
        why: it is damaged or incomplete.
        frames: that the last stages took.
        skipped: damaged pieces of it.
    """

    path: Path
    state: Literal["ok", "before", "damaged", "incomplete"]
    why: str = ""
    frames: int = 0
    seconds: float = 0.0
    skipped: int = 0

    @property
    def is_fine(self) -> bool:
        """Whether all of its results are there."""
        return self.state in ("ok", "before")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "path": str(self.path), "seconds": round(self.seconds, 3)}


_LOOK_S = 0.2
"""Seconds between two checks for a signal: another thread may have got it, but Python's main thread runs the handler.
"""
OnResult = Callable[[VideoResult, int, int], object]
"""A function of a video's result, the number of finished videos, and of all."""


class VideoRuns:
    """Runner of all videos of a ``videos:`` source, some in parallel, each in a separate pipeline.

    Args:
        file: its only source names videos.
        environment: of each pipeline, whose engines are kept from one video to the next.
        jobs: how many videos are played at a time; each has engines of its own.
        callbacks: see :class:`edgert.Pipeline`.
        on_progress: see there.
        strict: see there.

    Raises:
        ConfigError, StageError: see :func:`edgert.videos.videos_of`.
    """

    def __init__(
        self,
        file: PipelineFile,
        environment: Environment,
        *,
        jobs: int = 1,
        callbacks: Mapping[str, Callback] | None = None,
        on_progress: OnProgress | None = None,
        strict: bool = False,
    ) -> None:
        self.videos, self._environment = videos_of(_for_jobs(file, jobs)), environment
        self._jobs, self._callbacks, self._on_progress, self._strict = jobs, callbacks, on_progress, strict
        self.journal = Journal(file, self.videos)
        self._results: dict[Path, VideoResult] = {}
        self._error: BaseException | None = None
        self._left, self._turn, self._stopping = list[Video](), threading.Lock(), threading.Event()
        self._running = set[Pipeline]()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before all videos were played."""
        return self._stopping.is_set() and len(self._results) < len(self.videos)

    def run(
        self, on_result: OnResult = lambda *_: None, on_begin: Callable[[int, int], object] = lambda *_: None
    ) -> list[VideoResult]:
        """Play what no earlier run was done with; return the results so far, in the order of the videos.

        A video that is damaged is one result; other errors end the run, which goes on there when it is started again.

        Args:
            on_result: see :func:`run_videos`.
            on_begin: called before the first, with how many were done before, and how many there are.

        Raises:
            EdgertError: the first error of any stage that is not the video's.
        """
        with self.journal.opened():
            for video in self.videos:
                if self.journal.is_done(video):
                    self._results[video.path] = VideoResult(video.path, "before")
                else:
                    self._left.append(video)
            on_begin(len(self._results), len(self.videos))
            count = max(1, min(self._jobs, len(self._left)))
            ended = [threading.Event() for _ in range(count)]
            threads = [
                threading.Thread(target=self._work, args=(on_result, one), name="edgert:videos") for one in ended
            ]
            for thread in threads:
                thread.start()
            try:
                for one in ended:
                    while not one.wait(_LOOK_S):
                        pass
            except BaseException:  # Ctrl-C, after which join() takes a thread for ended in Python 3.11
                self.stop()
                for one in ended:
                    while not one.wait(_LOOK_S):
                        pass
                raise
        if self._error is not None:
            raise self._error
        return [self._results[video.path] for video in self.videos if video.path in self._results]

    def stop(self) -> None:
        """End it: videos that are being played are played again by the next run. Returns at once."""
        self._stopping.set()
        with self._turn:
            running = tuple(self._running)
        for pipeline in running:
            pipeline.stop()

    def _work(self, on_result: OnResult, ended: threading.Event) -> None:
        environment = replace(self._environment, kept={})
        try:
            while (video := self._next()) is not None:
                result = self._played(video, environment)
                if result is None:
                    return
                with self._turn:
                    self._results[video.path] = result
                    on_result(result, len(self._results), len(self.videos))
        except BaseException as error:  # noqa: BLE001 - raised by run(), in the thread that called it
            self._error = self._error or error
            self.stop()
        finally:
            for engine in (environment.kept or {}).values():
                engine.close()
            ended.set()

    def _next(self) -> Video | None:
        with self._turn:
            return self._left.pop(0) if self._left and not self._stopping.is_set() else None

    def _played(self, video: Video, environment: Environment) -> VideoResult | None:
        """Play one video; return None where it was stopped."""
        began_s, damage = time.monotonic(), ""
        self.journal.begin(video)
        try:
            summary = self._summary(video, environment)
        except EdgertError as error:
            if not _is_of_source(error, video.file):
                self.journal.undo(video)
                raise
            summary, damage = None, f"{error.what.replace(str(video.path), '').strip()}: {error.why}"
        except BaseException:
            self.journal.undo(video)
            raise
        if self._stopping.is_set():
            self.journal.undo(video)
            return None
        result = _result_of(video, summary, damage, time.monotonic() - began_s)
        self.journal.end(video, is_done=result.is_fine)
        return result

    def _summary(self, video: Video, environment: Environment) -> Summary:
        made = pipeline_in(
            environment, video.file, callbacks=self._callbacks, on_progress=self._on_progress, strict=self._strict
        )
        with made as pipeline:
            with self._turn:
                self._running.add(pipeline)
            try:
                if self._stopping.is_set():
                    pipeline.stop()
                return pipeline.run()
            finally:
                with self._turn:
                    self._running.discard(pipeline)


def run_videos(
    file: PipelineSource,
    *,
    overrides: Iterable[str] = (),
    jobs: int = 1,
    callbacks: Mapping[str, Callback] | None = None,
    on_result: OnResult = lambda *_: None,
    on_progress: OnProgress | None = None,
    strict: bool = False,
) -> list[VideoResult]:
    """Run a pipeline once for each video of its ``videos:`` source, as ``edgert run`` does.

    Args:
        file: path of the YAML file, or a pipeline that is loaded.
        overrides: ``key.path=value``, as given to ``--set``.
        jobs: how many videos are played at a time.
        callbacks: stage name → function called with each of that stage's results, whose frames have the video's name as
            ``frame.file``; from as many threads as there are jobs.
        on_result: called when a video is done: with its :class:`VideoResult`, how many are done, how many there are.
        on_progress: see :class:`edgert.Pipeline`.
        strict: see :class:`edgert.Pipeline`.

    Returns:
        What came of each video, in the order in which they are played.

    Raises:
        EdgertError: the file, a model or a stage is wrong. What is done stays done for the next run.
    """
    from edgert.assemble import HERE, with_default_engines

    found, _ = with_default_engines(load_pipeline(file, overrides))
    runs = VideoRuns(found, HERE, jobs=jobs, callbacks=callbacks, on_progress=on_progress, strict=strict)
    return runs.run(on_result)


def _for_jobs(file: PipelineFile, jobs: int) -> PipelineFile:
    """Return the pipeline with an equal share of the processor for each job's models."""
    from edgert.assemble.models import threads_of

    if jobs < 1:
        raise ConfigError(f"cannot run {jobs} jobs", fix="1 or more")
    served = [name for name, stage in file.config.stages.items() if getattr(stage, "port", 0)]
    if jobs > 1 and served:
        why = "each of several jobs would open the port"
        fix = "--jobs 1, or a pipeline without it"
        raise ConfigError(f"stage {served[0]!r} has a port", why=why, where=file.where("stages", served[0]), fix=fix)
    config, models = file.config, dict(file.config.models)
    for name, model in models.items() if jobs > 1 else ():
        if model.threads is None:
            models[name] = model.model_copy(update={"threads": max(1, threads_of(config, name) // jobs)})
    return replace(file, config=config.model_copy(update={"models": models}))


def _is_of_source(error: EdgertError, file: PipelineFile) -> bool:
    """Return whether an error is the video's, by its kind and the place that it names."""
    sources = [name for name, stage in file.config.stages.items() if isinstance(stage, SourceStage)]
    return isinstance(error, StageError) and any(
        re.search(rf"\bstages\.{re.escape(name)}(\.source)?$", error.where) for name in sources
    )


def _result_of(video: Video, summary: Summary | None, damage: str, seconds: float) -> VideoResult:
    if summary is None:
        return VideoResult(video.path, "damaged", damage, seconds=seconds)
    sources = [stage.source for stage in summary.stages.values() if stage.source is not None]
    skipped = sum(source.skipped for source in sources)
    failing = [
        f"{name} was down at its end: {stage.failing}" for name, stage in summary.stages.items() if stage.failing
    ]
    state: Literal["ok", "incomplete"] = "incomplete" if failing else "ok"
    return VideoResult(video.path, state, "; ".join(failing), summary.frames_out, seconds, skipped)
