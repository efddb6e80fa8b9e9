"""One video after another through a pipeline whose engines stay: on this machine, or in a task of a cluster."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from edgert.cluster import this_worker
from edgert.config import PipelineFile
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError, EdgertError, StageError, cause
from edgert.files import exists
from edgert.pipeline import Pipeline, pipeline_in
from edgert.reporter import OnProgress
from edgert.stages.kinds import FileSink
from edgert.stages.sink.output_files import fixed_folder, safe_name
from edgert.videos import Video, is_stream

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
        worker: address of the Dask worker that played it; empty of this machine.
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
        """Whether all of its results are there."""
        return self.state in ("ok", "before")

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "path": str(self.path), "seconds": round(self.seconds, 3)}


class Player:
    """Player of videos, one at a time, whose engines are kept from one to the next.

    Args:
        environment: of each pipeline.
        callbacks: see :class:`edgert.Pipeline`.
        on_progress: see there.
        strict: see there.
    """

    def __init__(
        self,
        environment: Environment,
        callbacks: Mapping[str, Callback] | None = None,
        on_progress: OnProgress | None = None,
        strict: bool = False,
    ) -> None:
        self._environment = replace(environment, kept={})
        self._callbacks, self._on_progress, self._strict = callbacks, on_progress, strict
        self._lock, self._is_stopped = threading.Lock(), False
        self._pipeline: Pipeline | None = None

    def play(self, video: Video) -> VideoResult | None:
        """Play a video to its end; return None where that was stopped.

        Raises:
            EdgertError: an error that is not the video's.
        """
        began_s, summary, damage = time.monotonic(), None, ""
        try:
            summary = self._summary(video)
        except EdgertError as error:
            if not _is_of_source(error, video.file):
                raise
            damage = f"{error.what.replace(str(video.path), '').strip()}: {error.why}"
        return None if self._is_stopped else _result_of(video, summary, damage, time.monotonic() - began_s)

    def stop(self) -> None:
        """End the video that is played, and play no more. Returns at once."""
        with self._lock:
            self._is_stopped = True
            pipeline = self._pipeline
        if pipeline is not None:
            pipeline.stop()

    def close(self) -> None:
        """Close the engines."""
        for engine in (self._environment.kept or {}).values():
            engine.close()

    def _summary(self, video: Video) -> Summary:
        made = pipeline_in(
            self._environment, video.file, callbacks=self._callbacks, on_progress=self._on_progress, strict=self._strict
        )
        with made as pipeline:
            with self._lock:
                self._pipeline = pipeline
            try:
                if self._is_stopped:
                    pipeline.stop()
                return pipeline.run()
            finally:
                with self._lock:
                    self._pipeline = None


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


# In a task of a cluster.


def with_threads_for(file: PipelineFile, jobs: int) -> PipelineFile:
    """Return the pipeline with an equal share of the processor for the models of each job."""
    from edgert.assemble.models import threads_of

    config, models = file.config, dict(file.config.models)
    for name, model in models.items() if jobs > 1 else ():
        if model.threads is None:
            models[name] = model.model_copy(update={"threads": max(1, threads_of(config, name) // jobs)})
    return replace(file, config=config.model_copy(update={"models": models}))


def for_workers(file: PipelineFile) -> PipelineFile:
    """Return the pipeline as workers with other current folders run it, which rename each result when it is complete.

    Raises:
        ConfigError: a sink adds to existing files, or writes no file.
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
                why = f"{stage.path} is no file"
                raise ConfigError(
                    f"Dask workers cannot write the results of {name!r}", why=why, where=where, fix="path: a file"
                )
            stages[name] = stage.model_copy(update={"path": stage.path.absolute()})
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


_CHUNK_BYTES = 1 << 20
Read = Mapping[Path, str]
"""Files that a pipeline reads, and what each contains: :func:`fingerprint`."""


def fingerprint(path: Path) -> str:
    """Return a digest of a file's content, empty where it cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
    except OSError:
        return ""
    return found.hexdigest()


class Workplace:
    """The part of a run of many videos that is the same for all tasks; each worker has a copy.

    Can be pickled. Players, which hold engines, stay where they were made.

    Args:
        run: name of the run.
        strict: see :class:`Player`.
        read: files that a worker must see as the client does.
        beside: a file in the output folder while the run lasts, which shows that a worker writes into the same folder.
        jobs: tasks that run at a time on the cores of each worker that was there when the run began.
    """

    def __init__(self, run: str, strict: bool, read: Read, beside: Path, jobs: Mapping[str, int]) -> None:
        self._arguments = run, strict, read, beside, jobs
        self._lock, self._idle, self._players, self._is_checked = threading.Lock(), list[Player](), set[Player](), False
        self._is_stopped = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Workplace, self._arguments

    def play(self, video: Video) -> VideoResult | None:
        """Play a video, and give its results their names when all of them are there; None where it was stopped.

        Raises:
            DeviceError: this worker does not see the files that the client sees.
            EdgertError: an error that is not the video's.
        """
        from edgert.assemble import with_default_engines

        run, _, _, _, jobs = self._arguments
        name, own_jobs = this_worker()
        self._check(video, name)
        player = self._player(run)
        try:
            file, _ = with_default_engines(with_threads_for(video.file, jobs.get(name, own_jobs)))
            with Unfinished(replace(video, file=file)) as unfinished:
                result = player.play(unfinished.video)
                if result is None:
                    return None
                unfinished.finish()
            return replace(result, worker=name)
        finally:
            with self._lock:
                self._idle.append(player)

    def stop(self) -> None:
        """End all videos that are played here, and play no more."""
        with self._lock:
            self._is_stopped = True
            players = tuple(self._players)
        for player in players:
            player.stop()

    def close(self) -> None:
        """Close the engines of players that play nothing."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._players.difference_update(idle)
        for player in idle:
            player.close()

    def _player(self, run: str) -> Player:
        from edgert.assemble import HERE

        with self._lock:
            _RUNS[run] = self
            player = self._idle.pop() if self._idle else Player(HERE, strict=self._arguments[1])
            self._players.add(player)
            if self._is_stopped:
                player.stop()
        return player

    def _check(self, video: Video, name: str) -> None:
        _, _, read, beside, _ = self._arguments
        with self._lock:
            files = {} if self._is_checked else read
            wrong = next((path for path, content in files.items() if fingerprint(path) != content), None)
            self._is_checked = wrong is None
        shared = "put it into a folder that this machine and all workers see by the same path"
        if wrong is not None:
            why = "it has other content there" if exists(wrong) else "there is no such file there"
            raise DeviceError(f"Dask worker {name} cannot read {wrong}", why=why, fix=shared)
        if not exists(video.path):
            raise DeviceError(f"Dask worker {name} cannot read {video.path}", why="there is no such file", fix=shared)
        if not exists(beside):
            folder, why = beside.parent, "its folder of that name is another one"
            raise DeviceError(f"Dask worker {name} cannot write into {folder}", why=why, fix=shared)


_RUNS: WeakValueDictionary[str, Workplace] = WeakValueDictionary()
"""Runs with players in this process, for :func:`stop_there`; a run's tasks hold its workplace."""


def play_there(work: Workplace, video: Video) -> VideoResult | None:
    """Play a video, as a task of a cluster; see :meth:`Workplace.play`."""
    return work.play(video)


def stop_there(run: str, closes: bool = False) -> None:
    """End what a run plays on this worker; ``closes`` closes its engines, too."""
    if (work := _RUNS.get(run)) is not None:
        work.stop()
        if closes:
            work.close()


class Unfinished:
    """A video whose results get their names when all of them are there, so that nobody reads half of them.

    Until then they lie in a hidden folder, ``.NAME.*.part``, beside the place of each. A context manager: it removes
    the folders at its end, and at its start those of a worker that was killed.

    Attributes:
        video: the video, with sinks that write there.
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

    def __enter__(self) -> Unfinished:
        for folder in self._folders:
            for left in folder.glob(f"{self._stem}*.part"):
                shutil.rmtree(left, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._folders.values():
            shutil.rmtree(part, ignore_errors=True)

    def finish(self) -> None:
        """Rename all results. Raises StageError: one cannot be."""
        for folder, part in self._folders.items():
            for path in _files_below(part):
                wanted = folder / path.relative_to(part)
                try:
                    wanted.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(wanted)
                except OSError as error:
                    raise StageError(f"cannot write {wanted}", why=cause(error)) from error


def _files_below(folder: Path) -> Sequence[Path]:
    with suppress(FileNotFoundError):
        return sorted(path for path in folder.rglob("*") if not path.is_dir())
    return ()
