"""A pipeline over many videos: run once for each, here or by the workers of a cluster, and a result for every video."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.cluster import Cluster, LostWorkersError
from edgert.config import PipelineFile, PipelineSource, load_pipeline
from edgert.errors import ConfigError, DeviceError
from edgert.reporter import OnProgress
from edgert.video_player import (
    Player,
    VideoResult,
    Workplace,
    fingerprint,
    for_workers,
    play_there,
    stop_there,
    with_threads_for,
)
from edgert.videos import Journal, Video, files_read, videos_of

if TYPE_CHECKING:
    from edgert.assemble import Callback, Environment


log = logging.getLogger("edgert.videos")

_LOOK_S = 0.2
"""Seconds between two checks for a signal: another thread may have got it, but Python's main thread runs the handler.
"""
_AHEAD = 2  # tasks for each thread of a cluster: one being played, one waiting
_END_S = 3.0  # for workers to end their videos
OnResult = Callable[[VideoResult, int, int], object]
"""A function of a video's result, the number of finished videos, and of all."""


class VideoRuns:
    """Runner of all videos of a ``videos:`` source, some in parallel, each in a separate pipeline.

    Args:
        file: its only source names videos.
        environment: of each pipeline, whose engines are kept from one video to the next.
        jobs: how many videos are played at a time; each has engines of its own.
        dask: address of a Dask scheduler, whose workers play them instead.
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
        dask: str = "",
        callbacks: Mapping[str, Callback] | None = None,
        on_progress: OnProgress | None = None,
        strict: bool = False,
    ) -> None:
        _check_jobs(file, jobs, dask, callbacks)
        self.videos = videos_of(for_workers(file) if dask else with_threads_for(file, jobs))
        self._file, self._environment, self._jobs, self._dask = file, environment, jobs, dask
        self._callbacks, self._on_progress, self._strict = callbacks, on_progress, strict
        self.journal = Journal(file, self.videos)
        self._results: dict[Path, VideoResult] = {}
        self._error: BaseException | None = None
        self._left, self._turn, self._stopping = list[Video](), threading.Lock(), threading.Event()
        self._players, self._end_s, self._is_alone = list[Player](), 0.0, False
        self._suspects, self._suspected = list[Video](), set[Path]()

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
            if self._left and self._dask:
                self._play_there(on_result)
            elif self._left:
                self._play_here(on_result)
        return [self._results[video.path] for video in self.videos if video.path in self._results]

    def stop(self) -> None:
        """End it: videos that are being played are played again by the next run. Returns at once."""
        self._stopping.set()
        with self._turn:
            players = tuple(self._players)
        for player in players:
            player.stop()

    def _play_here(self, on_result: OnResult) -> None:
        count = max(1, min(self._jobs, len(self._left)))
        ended = [threading.Event() for _ in range(count)]
        threads = [threading.Thread(target=self._work, args=(on_result, one), name="edgert:videos") for one in ended]
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

    def _work(self, on_result: OnResult, ended: threading.Event) -> None:
        player = Player(self._environment, self._callbacks, self._on_progress, self._strict)
        with self._turn:
            self._players.append(player)
        try:
            while (video := self._next()) is not None:
                self.journal.begin(video)
                try:
                    result = player.play(video)
                except BaseException:
                    self.journal.undo(video)
                    raise
                if not self._came(video, result, on_result):
                    return
        except BaseException as error:  # noqa: BLE001 - raised by run(), in the thread that called it
            self._error = self._error or error
            self.stop()
        finally:
            player.close()
            ended.set()

    def _next(self) -> Video | None:
        with self._turn:
            return self._left.pop(0) if self._left and not self._stopping.is_set() else None

    def _came(self, video: Video, result: VideoResult | None, on_result: OnResult) -> bool:
        """Note the result of a video; return whether there is one."""
        if result is None:
            self.journal.undo(video)
            return False
        self.journal.end(video, is_done=result.is_fine)
        with self._turn:
            self._results[video.path] = result
            on_result(result, len(self._results), len(self.videos))
        return True

    # By the workers of a cluster.

    def _play_there(self, on_result: OnResult) -> None:
        run, playing = uuid.uuid4().hex, dict[Any, Video]()
        with closing(Cluster(self._dask)) as cluster:
            read = {path: fingerprint(path) for path in files_read(self._file)}
            work = cluster.submit(Workplace, run, self._strict, read, self.journal.lock_path, cluster.jobs())
            try:
                while ((self._left or self._suspects) and not self._stopping.is_set()) or playing:
                    self._submit(cluster, work, playing)
                    self._take(cluster, playing, on_result)
                    if self._stopping.is_set() and not self._is_ending(cluster, run):
                        break
            finally:
                cluster.cancel(list(playing))
                with suppress(DeviceError):
                    cluster.everywhere(stop_there, run, True)
                for video in playing.values():
                    self.journal.undo(video)

    def _submit(self, cluster: Cluster, work: Any, playing: dict[Any, Video]) -> None:
        """Submit as many videos as the workers that are there now will soon play."""
        threads = cluster.threads
        if not threads and not self._is_alone:
            log.warning("no worker is left at %s; waiting for one: dask worker %s", self._dask, self._dask)
        self._is_alone = not threads
        if not self._left and not playing and self._suspects and threads:
            self._left.append(self._suspects.pop())
        while len(playing) < _AHEAD * threads and (video := self._next()) is not None:
            self.journal.begin(video)
            playing[cluster.submit(play_there, work, video)] = video
        if not playing:
            self._stopping.wait(_LOOK_S)

    def _take(self, cluster: Cluster, playing: dict[Any, Video], on_result: OnResult) -> None:
        """Note the results of tasks that have ended.

        A video whose workers died is played again after all others, alone: another one may have killed them.
        """
        for future in cluster.ended(playing, _LOOK_S):
            video = playing[future]
            try:
                result = cluster.result(future)
            except LostWorkersError as error:
                result = VideoResult(video.path, "damaged", f"{error.what}: {error.why}")
                if video.path not in self._suspected:
                    result = None
                    self._suspects.append(video)
                    self._suspected.add(video.path)
            self._came(playing.pop(future), result, on_result)

    def _is_ending(self, cluster: Cluster, run: str) -> bool:
        """Ask workers to end their videos; return whether they may still take time for it."""
        if not self._end_s:
            self._end_s = time.monotonic() + _END_S
        cluster.everywhere(stop_there, run)
        return time.monotonic() < self._end_s


def run_videos(
    file: PipelineSource,
    *,
    overrides: Iterable[str] = (),
    jobs: int = 1,
    dask: str = "",
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
        dask: address of a Dask scheduler, whose workers play them instead. All of them see the pipeline, its models,
            the videos and the output folder by the same paths.
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

    found = load_pipeline(Path(file).absolute() if isinstance(file, (str, Path)) else file, overrides)
    found = found if dask else with_default_engines(found)[0]
    runs = VideoRuns(found, HERE, jobs=jobs, dask=dask, callbacks=callbacks, on_progress=on_progress, strict=strict)
    return runs.run(on_result)


def _check_jobs(file: PipelineFile, jobs: int, dask: str, callbacks: Mapping[str, Callback] | None) -> None:
    """Raise ConfigError where videos cannot be played in several jobs, or by workers elsewhere."""
    if jobs < 1:
        raise ConfigError(f"cannot run {jobs} jobs", fix="1 or more")
    if dask and callbacks:
        why, fix = "their videos are played by other processes", "read the results that the pipeline's sinks write"
        raise ConfigError("callbacks cannot see the results of Dask workers", why=why, fix=fix)
    served = [name for name, stage in file.config.stages.items() if getattr(stage, "port", 0)]
    if (jobs > 1 or dask) and served:
        why = "each of several jobs would open the port"
        fix = "--jobs 1, or a pipeline without it"
        raise ConfigError(f"stage {served[0]!r} has a port", why=why, where=file.where("stages", served[0]), fix=fix)
