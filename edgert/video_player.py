"""Playing of videos one after another with the same engines, on this machine or in tasks of a cluster."""

from __future__ import annotations

import re
import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from edgert.cluster import this_worker
from edgert.config import PipelineFile
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError, raised_as
from edgert.files import digest_of_file, exists
from edgert.pipeline import Pipeline, pipeline_in
from edgert.stages.kinds import FileSink
from edgert.stages.sink.retention import fixed_folder, safe_name
from edgert.videos import Video, is_stream

if TYPE_CHECKING:
    from edgert.assemble import Environment
    from edgert.runtime import Summary


@dataclass(frozen=True, slots=True)
class VideoResult:
    """The result of one video.

    Attributes:
        path: path of the video.
        state: ``ok``; ``before``: an earlier run finished it; ``damaged``: it cannot be played to its end;
            ``incomplete``: a stage that may fail was down at its end.
        why: reason why it is damaged or incomplete; else empty.
        frames: number of frames that reached the last stages.
        seconds: time that playing it took.
        skipped: number of damaged pieces that were skipped.
        worker: address of the Dask worker that played it; empty for this machine.
    """

    path: Path
    state: Literal["ok", "before", "damaged", "incomplete"]
    why: str = ""
    frames: int = 0
    seconds: float = 0.0
    skipped: int = 0
    worker: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether its results are complete."""
        return self.state in ("ok", "before")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "path": str(self.path), "seconds": round(self.seconds, 3)}


class Players:
    """Players of videos, which keep their engines from one video to the next. Callable from any thread.

    Each video that is played at a time has engines of its own.

    Args:
        environment: environment of each pipeline.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment, self._lock, self._is_stopped = environment, threading.Lock(), False
        self._playing, self._idle = set[Pipeline](), list[dict[Any, Any]]()  # engines that no video uses now

    def play(self, video: Video) -> VideoResult | None:
        """Play a video to its end; return None if it was stopped before.

        Raises:
            EdgertError: an error that another video would cause, too; a damaged video is a result instead.
        """
        began_s, summary, damage = time.monotonic(), None, ""
        try:
            summary = self._run(video)
        except EdgertError as error:
            if not _is_source_error(error, video.file):
                raise
            damage = f"{error.what.replace(str(video.path), '').strip()}: {error.why}"
        return None if self._is_stopped else _result_of(video, summary, damage, time.monotonic() - began_s)

    def stop(self) -> None:
        """Stop the current videos, and play no further ones. Returns at once."""
        with self._lock:
            self._is_stopped = True
            playing = tuple(self._playing)
        for pipeline in playing:
            pipeline.stop()

    def close(self) -> None:
        """Close the engines that no video uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        with ExitStack() as stack:  # one that fails leaves none open
            for engines in idle:
                for engine in engines.values():
                    stack.callback(engine.close)

    def _run(self, video: Video) -> Summary:
        with self._lock:
            engines = self._idle.pop() if self._idle else {}
        environment = replace(self._environment, kept=engines)
        try:
            with pipeline_in(environment, video.file) as pipeline:
                with self._lock:
                    self._playing.add(pipeline)
                try:
                    if self._is_stopped:
                        pipeline.stop()
                    return pipeline.run()
                finally:
                    with self._lock:
                        self._playing.discard(pipeline)
        finally:
            with self._lock:
                self._idle.append(engines)


def _is_source_error(error: EdgertError, file: PipelineFile) -> bool:
    """Return whether an error comes from reading the video, by its class and the place that it names."""
    sources = [name for name, stage in file.config.stages.items() if isinstance(stage, SourceStage)]
    return isinstance(error, StageError) and any(
        re.search(rf"\bstages\.{re.escape(name)}(\.source)?$", error.where) for name in sources
    )


def _result_of(video: Video, summary: Summary | None, damage: str, seconds: float) -> VideoResult:
    if summary is None:
        return VideoResult(video.path, "damaged", damage, seconds=seconds)
    sources = [stage.source for stage in summary.stages.values() if stage.source is not None]
    skipped = sum(source.skipped for source in sources)
    reasons = {name: stage.state.failing for name, stage in summary.stages.items()}
    failing = [f"{name} was down at its end: {reason}" for name, reason in reasons.items() if reason]
    state: Literal["ok", "incomplete"] = "incomplete" if failing else "ok"
    return VideoResult(video.path, state, "; ".join(failing), summary.frames_out, seconds, skipped)


# Playing in parallel jobs, or in tasks of a cluster.


def with_threads_for(file: PipelineFile, jobs: int) -> PipelineFile:
    """Return the pipeline with its models' threads divided among parallel jobs."""
    from edgert.assemble.models import threads_of

    config, models = file.config, dict(file.config.models)
    for name, model in models.items() if jobs > 1 else ():
        if model.threads is None:
            models[name] = model.model_copy(update={"threads": max(1, threads_of(config, name) // jobs)})
    return replace(file, config=config.model_copy(update={"models": models}))


def for_workers(file: PipelineFile) -> PipelineFile:
    """Return the pipeline with absolute paths of its outputs, as workers have other current folders.

    Raises:
        ConfigError: a sink appends to existing files, or does not write files, so that workers cannot run it.
    """
    stages = dict(file.config.stages)
    for name, stage in stages.items():
        if isinstance(stage, FileSink):
            where = file.where("stages", name)
            if stage.existing == "keep":
                why = "a Dask worker writes new files, and renames them when they are complete"
                fix = "existing: replace, or run it without --dask"
                raise ConfigError(f"stage {name!r} adds to existing files", why=why, where=where, fix=fix)
            if is_stream(stage.path):
                what, why = f"Dask workers cannot write the results of {name!r}", f"{stage.path} is no file"
                raise ConfigError(what, why=why, where=where, fix="path: a file")
            stages[name] = stage.model_copy(update={"path": stage.path.absolute()})
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


class WorkerState(Players):
    """Players of a run of many videos on one worker, and what all tasks of the run share.

    It can be pickled; the engines are not part of the pickle.

    Args:
        run: name of the run.
        strict: as for :class:`Players`.
        digests: file that a worker must see as the client does → its SHA-256.
        lock_path: file that exists in the output folder during the run; a worker that does not see it writes into
            another folder.
        jobs: worker → tasks that run at a time on its cores, for the workers at the start of the run.
    """

    def __init__(
        self, run: str, strict: bool, digests: Mapping[Path, str], lock_path: Path, jobs: Mapping[str, int]
    ) -> None:
        from edgert.assemble import Environment

        super().__init__(Environment(strict=strict))
        self._arguments, self._is_checked = (run, strict, digests, lock_path, jobs), False

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerState, self._arguments

    def play(self, video: Video) -> VideoResult | None:
        """Play a video, and rename its outputs when they are complete; return None if it was stopped.

        Raises:
            DeviceError: this worker does not see the files that the client sees.
            EdgertError: as for :meth:`Players.play`.
        """
        from edgert.assemble import with_default_engines

        run, _, _, _, jobs = self._arguments
        name, own_jobs = this_worker()
        self._check_files(video, name)
        _RUNS[run] = self
        file, _ = with_default_engines(with_threads_for(video.file, jobs.get(name, own_jobs)))
        with HiddenOutputs(replace(video, file=file)) as outputs:
            result = super().play(outputs.video)
            if result is None:
                return None
            outputs.finish()
        return replace(result, worker=name)

    def _check_files(self, video: Video, name: str) -> None:
        """Raise DeviceError where this worker sees other files than the client."""
        _, _, digests, lock_path, _ = self._arguments
        with self._lock:
            files = {} if self._is_checked else digests
            wrong = next((path for path, digest in files.items() if digest_of_file(path) != digest), None)
            self._is_checked = wrong is None
        shared = "put it into a folder that this machine and all workers see by the same path"
        if wrong is not None:
            why = "it has other content there" if exists(wrong) else "there is no such file there"
            raise DeviceError(f"Dask worker {name} cannot read {wrong}", why=why, fix=shared)
        if not exists(video.path):
            raise DeviceError(f"Dask worker {name} cannot read {video.path}", why="there is no such file", fix=shared)
        if not exists(lock_path):
            folder, why = lock_path.parent, "its folder of that name is another one"
            raise DeviceError(f"Dask worker {name} cannot write into {folder}", why=why, fix=shared)


_RUNS: WeakValueDictionary[str, WorkerState] = WeakValueDictionary()
"""Runs with players in this process, for :func:`stop_run`; the tasks of a run hold its state."""


def play_video(state: WorkerState, video: Video) -> VideoResult | None:
    """Play a video, as a task of a cluster; see :meth:`WorkerState.play`."""
    return state.play(video)


def stop_run(run: str, closes: bool = False) -> None:
    """Stop the videos of a run on this worker; with ``closes``, close its engines, too."""
    if (state := _RUNS.get(run)) is not None:
        state.stop()
        if closes:
            state.close()


class HiddenOutputs:
    """Hidden folders ``.NAME.*.part`` for the outputs of one video, so that nobody reads incomplete files.

    As a context manager, it removes these folders at its end, and at its start those of workers that were killed.

    Attributes:
        video: the video, with sinks that write into the hidden folders.
    """

    def __init__(self, video: Video) -> None:
        config, self._folders = video.file.config, dict[Path, Path]()
        stages, token = dict(config.stages), uuid.uuid4().hex[:8]
        self._stem = f".{safe_name(video.name)}."
        for name, stage in stages.items():
            if isinstance(stage, FileSink):
                folder = fixed_folder(stage.path)
                part = self._folders.setdefault(folder, folder / f"{self._stem}{token}.part")
                stages[name] = stage.model_copy(update={"path": part / stage.path.relative_to(folder)})
        self.video = replace(video, file=replace(video.file, config=config.model_copy(update={"stages": stages})))

    def __enter__(self) -> HiddenOutputs:
        for folder in self._folders:
            for left in folder.glob(f"{self._stem}*.part"):
                shutil.rmtree(left, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._folders.values():
            shutil.rmtree(part, ignore_errors=True)

    def finish(self) -> None:
        """Move all outputs to their final paths. Raises StageError: one cannot be moved."""
        for folder, part in self._folders.items():
            for path in _files_below(part):
                wanted = folder / path.relative_to(part)
                with raised_as(StageError, f"cannot write {wanted}"):
                    wanted.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(wanted)


def _files_below(folder: Path) -> Sequence[Path]:
    with suppress(FileNotFoundError):
        return sorted(path for path in folder.rglob("*") if not path.is_dir())
    return ()
