"""Runs of a pipeline over many videos, here or by the workers of a Dask cluster."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert import files, video_player
from edgert.cluster import Cluster, LostWorkersError
from edgert.config import PipelineFile, PipelineSource, load_pipeline
from edgert.errors import ConfigError, DeviceError
from edgert.reporter import OnProgress
from edgert.video_player import Players, VideoResult
from edgert.videos import Journal, Video, files_read, videos_of

if TYPE_CHECKING:
    from edgert.assemble import Callback, Environment


log = logging.getLogger("edgert.videos")

_LOOK_S = 0.2
"""Longest wait of the main thread, which runs the handlers of signals that another thread received."""
_TASKS_PER_THREAD = 2  # of a cluster: one video is played, one waits
_END_S = 3.0  # time for workers to stop their videos
OnResult = Callable[[VideoResult, int, int], object]


class VideoRuns:
    """Runner of all videos of a ``videos:`` source, some in parallel, each in a separate pipeline.

    Args:
        file: pipeline whose only source is ``videos:``.
        environment: environment of each pipeline, whose engines are kept from one video to the next.
        jobs: number of videos played at a time, each with separate engines.
        dask: address of a Dask scheduler, whose workers play the videos; empty: this machine does.

    Raises:
        ConfigError, StageError: as for :func:`edgert.videos.videos_of`.
    """

    def __init__(self, file: PipelineFile, environment: Environment, *, jobs: int = 1, dask: str = "") -> None:
        _check_jobs(file, jobs, dask, environment.callbacks)
        self.videos = videos_of(video_player.for_workers(file) if dask else video_player.with_threads_for(file, jobs))
        self._file, self._jobs, self._dask, self._strict = file, jobs, dask, environment.strict
        self._players = Players(environment)
        self.journal = Journal(file, self.videos)
        self._results: dict[Path, VideoResult] = {}
        self._pending, self._lock, self._stopping = list[Video](), threading.Lock(), threading.Event()
        self._end_s, self._lacks_workers = 0.0, False
        self._suspects, self._suspected = list[Video](), set[Path]()  # videos whose workers died: to retry, and all

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before all videos were played."""
        return self._stopping.is_set() and len(self._results) < len(self.videos)

    def run(
        self, on_result: OnResult = lambda *_: None, on_begin: Callable[[int, int], object] = lambda *_: None
    ) -> list[VideoResult]:
        """Play the videos that no earlier run finished; return all results so far, in the order of the videos.

        A damaged video is a result; other errors end the run. The next run continues where it ended.

        Args:
            on_result: as for :func:`run_videos`.
            on_begin: function called first, with the number of videos that earlier runs finished, and of all.

        Raises:
            EdgertError: the first error that is not caused by a damaged video.
        """
        with self.journal.opened():
            for video in self.videos:
                if self.journal.is_done(video):
                    self._results[video.path] = VideoResult(video.path, "before")
                else:
                    self._pending.append(video)
            on_begin(len(self._results), len(self.videos))
            if self._pending and self._dask:
                self._play_on_workers(on_result)
            elif self._pending:
                self._play_here(on_result)
        return [self._results[video.path] for video in self.videos if video.path in self._results]

    def stop(self) -> None:
        """Stop the run; the next one plays unfinished videos again. Returns at once."""
        self._stopping.set()
        self._players.stop()

    def _play_here(self, on_result: OnResult) -> None:
        count = max(1, min(self._jobs, len(self._pending)))
        with closing(self._players), ThreadPoolExecutor(count, "edgert:videos") as pool:
            try:
                jobs = [pool.submit(self._play_all, on_result) for _ in range(count)]
                while wait(jobs, _LOOK_S).not_done:
                    pass
            except BaseException:  # no further thread can start, or Ctrl-C
                self.stop()
                raise
            for job in jobs:
                job.result()

    def _play_all(self, on_result: OnResult) -> None:
        while (video := self._next()) is not None:
            self.journal.begin(video)
            try:
                result = self._players.play(video)
            except BaseException:
                self.stop()
                self.journal.undo(video)
                raise
            self._note_result(video, result, on_result)

    def _next(self) -> Video | None:
        with self._lock:
            return self._pending.pop(0) if self._pending and not self._stopping.is_set() else None

    def _note_result(self, video: Video, result: VideoResult | None, on_result: OnResult) -> None:
        """Note the result of a video, or that it was stopped."""
        if result is None:
            self.journal.undo(video)
            return
        self.journal.end(video, is_done=result.is_fine)
        with self._lock:
            self._results[video.path] = result
            on_result(result, len(self._results), len(self.videos))

    # Playing by the workers of a cluster.

    def _play_on_workers(self, on_result: OnResult) -> None:
        run, playing = uuid.uuid4().hex, dict[Any, Video]()
        with closing(Cluster(self._dask)) as cluster:
            digests = {path: files.digest_of_file(path) for path in files_read(self._file)}
            state = cluster.submit(
                video_player.WorkerState, run, self._strict, digests, self.journal.lock_path, cluster.jobs()
            )
            try:
                while ((self._pending or self._suspects) and not self._stopping.is_set()) or playing:
                    self._submit_videos(cluster, state, playing)
                    self._note_finished(cluster, playing, on_result)
                    if self._stopping.is_set() and not self._may_wait_for_workers(cluster, run):
                        break
            finally:
                cluster.cancel(list(playing))
                with suppress(DeviceError):
                    cluster.everywhere(video_player.stop_run, run, True)
                for video in playing.values():
                    self.journal.undo(video)

    def _submit_videos(self, cluster: Cluster, state: Any, playing: dict[Any, Video]) -> None:
        """Submit as many videos as the current workers will soon play."""
        threads = cluster.threads
        if not threads and not self._lacks_workers:
            log.warning("no worker is left at %s; waiting for one: dask worker %s", self._dask, self._dask)
        self._lacks_workers = not threads
        if not self._pending and not playing and self._suspects and threads:
            self._pending.append(self._suspects.pop())
        while len(playing) < _TASKS_PER_THREAD * threads and (video := self._next()) is not None:
            self.journal.begin(video)
            playing[cluster.submit(video_player.play_video, state, video)] = video
        if not playing:
            self._stopping.wait(_LOOK_S)

    def _note_finished(self, cluster: Cluster, playing: dict[Any, Video], on_result: OnResult) -> None:
        """Note the results of finished tasks.

        A video whose workers died is played again, alone and after all others, as another video may have killed them.
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
            self._note_result(playing.pop(future), result, on_result)

    def _may_wait_for_workers(self, cluster: Cluster, run: str) -> bool:
        """Ask workers to stop their videos; return whether there is time left to wait for them."""
        if not self._end_s:
            self._end_s = time.monotonic() + _END_S
        cluster.everywhere(video_player.stop_run, run)
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
        file: path of the YAML file, or a loaded pipeline.
        overrides: ``key.path=value``, as given to ``--set``.
        jobs: number of videos played at a time.
        dask: address of a Dask scheduler, whose workers play the videos. All of them must see the pipeline, its models,
            the videos and the output folder by the same paths.
        callbacks: stage name → function called with each of that stage's results, whose frames have the video's name as
            ``frame.extra.file``; from as many threads as there are jobs.
        on_result: function called with each :class:`VideoResult`, the number of finished videos, and of all.
        on_progress: as for :class:`edgert.Pipeline`.
        strict: as for :class:`edgert.Pipeline`.

    Returns:
        The result of each video, in playing order.

    Raises:
        EdgertError: the file, a model or a stage is wrong. The next run does not repeat finished videos.
    """
    from edgert.assemble import Environment, with_default_engines

    loaded = load_pipeline(Path(file).absolute() if isinstance(file, (str, Path)) else file, overrides)
    loaded = loaded if dask else with_default_engines(loaded)[0]
    here = Environment(callbacks=callbacks or {}, on_progress=on_progress, strict=strict)
    return VideoRuns(loaded, here, jobs=jobs, dask=dask).run(on_result)


def _check_jobs(file: PipelineFile, jobs: int, dask: str, callbacks: Mapping[str, Callback]) -> None:
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
