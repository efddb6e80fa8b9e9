"""Measurement of ranges: images run through the float model, and the values of every tensor are counted.

Threads, processes of this machine or workers of a Dask cluster count small shards of the images.
"""

import hashlib
import json
import logging
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, closing
from ctypes import c_bool
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from edgert import cluster
from edgert.board.host import core_count
from edgert.errors import CalibrationError
from edgert.graph import Model
from edgert.quantization.calibration.ranges import RangeTable, read_state, write_state
from edgert.quantization.calibration.threshold import check_method, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Feeds, Image, Observer, assemble
from edgert.reporter import Bar

log = logging.getLogger("edgert.quantize")

Histograms = Mapping[str, Histogram]

SHARD = 4
"""Number of images of a shard, which costs one set of histograms; a divisor of :data:`CHECKPOINT`."""
MIN_IMAGES = 8
"""Smallest number of images that is accepted."""
FEW_IMAGES = 32
"""Number of images below which there is a warning; NVIDIA's guide to calibrators recommends about 500 for ImageNet."""
CHECKPOINT = 32
"""Images between two checks of the ranges."""
TOLERANCE = 0.005
"""Largest relative change of a threshold over :data:`CHECKPOINT` images at which ranges have settled; less than one
step of INT8 (1/127)."""

_TICK_S = 0.1  # seconds between two looks at the stop event
_MAX_THREADS = 8  # of one process by default; each holds the tensors of one slice
_SAVE_S = 10.0  # between two writes of a state file, which take a fraction of a second


@runtime_checkable
class Feed(Protocol):
    """Preprocessed images by number.

    Called from several threads at once, and from other processes, which get a pickled copy. The same number must always
    give the same arrays.
    """

    def __len__(self) -> int:
        """Return the number of images."""

    def name(self, index: int) -> str:
        """Return the name of an image for messages: its file, or the video and the frame."""

    def feeds(self, index: int) -> Feeds:
        """Return the inputs of one image by name, in the model's shapes and types, owned by the caller."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive images, from number ``start`` to the one before ``end``. Without arrays, a feed has them."""

    start: int
    end: int
    arrays: Sequence[Feeds] = ()

    def images(self, feed: Feed | None) -> Iterator[Image]:
        """Yield the name and inputs of each image, loaded when it is requested."""
        for number in range(self.start, self.end):
            loaded = self.arrays[number - self.start] if feed is None else feed.feeds(number)
            yield image_name(number, feed), loaded


def image_name(number: int, feed: Feed | None) -> str:
    """Return the name of an image for messages; an image of a stream has its number."""
    return f"image {number}" if feed is None else feed.name(number)


def from_feed(feed: Feed, start: int = 0) -> Iterator[Shard]:
    """Yield the images of a feed from number ``start`` on."""
    return (Shard(first, min(first + SHARD, len(feed))) for first in range(start, len(feed), SHARD))


def from_stream(stream: Iterable[Feeds]) -> Iterator[Shard]:
    """Yield the images of a stream, which is read one shard ahead."""
    images, start = iter(stream), 0
    while arrays := tuple(islice(images, SHARD)):
        yield Shard(start, start + len(arrays), arrays)
        start += len(arrays)


# A pool of workers takes ``width`` shards at once by ``submit``, which does not block. ``take`` returns the counts of
# the shard that was submitted first, or None when they take longer than the timeout. It raises EdgertError when the
# workers failed. ``close`` cancels shards that have not begun, and waits for the images being counted.

Counted = dict[str, Histogram]

_AHEAD = 2  # shards per worker: one being counted and one waiting, so that no worker idles
_DEATHS = 3
"""Number of dead workers after which a shard is an error; fewer can be killed by chance, for want of memory."""


class LocalWorkers:
    """Pool of threads that share one observer, or of new processes, each with its own.

    When a process dies, so do all others, and their shards are lost. Each lost shard is counted again when it is the
    first to take. Hardly anything else runs then, which finds a shard that kills its worker. Counts stay exact, since a
    shard is added all at once.
    """

    def __init__(self, observer: Observer, feed: Feed | None, threads: int, processes: int) -> None:
        self._feed, self._closed = feed, c_bool(False)
        self._count: Callable[[Shard], Counted] = partial(_count_shard, (observer, feed, self._closed))
        self._new_pool: Callable[[], Executor] = partial(ThreadPoolExecutor, threads, "calibrate")
        if processes > 1:
            context = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
            self._closed = context.RawValue(c_bool, False)  # no lock, which a killed worker could hold
            options: dict[str, Any] = {"initializer": _init_worker, "initargs": ((observer, feed, self._closed),)}
            self._count, self._new_pool = _count, partial(ProcessPoolExecutor, processes, context, **options)
        self.width = _AHEAD * (processes if processes > 1 else threads)
        self._pool: Executor = self._new_pool()
        self._running: dict[int, Future[Counted]] = {}
        self._deaths = 0  # times that the first shard was lost

    def submit(self, shard: Shard) -> None:
        try:
            future = self._pool.submit(self._count, shard)
        except BrokenProcessPool:
            self._pool = self._new_pool()
            future = self._pool.submit(self._count, shard)
        self._running[shard.start] = future

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        future = self._running[shard.start]
        if not wait([future], timeout_s).done:
            return None
        try:
            counted = future.result()
        except BrokenProcessPool as error:
            self._deaths += 1
            if self._deaths == _DEATHS:
                raise _deadly_shard_error(shard, self._feed, f"{_DEATHS} worker processes died over them") from error
            self.submit(shard)
            return None
        self._deaths = 0
        del self._running[shard.start]
        return counted

    def close(self) -> None:
        self._closed.value = True
        self._pool.shutdown(wait=True, cancel_futures=True)


def _deadly_shard_error(shard: Shard, feed: Feed | None, why: str) -> CalibrationError:
    """Return the error for images that kill every worker."""
    names = ", ".join(repr(image_name(number, feed)) for number in range(shard.start, shard.end))
    return CalibrationError(
        f"counting {names} fails repeatedly",
        why=why,
        fix="free some memory or use fewer workers; leave these images out if they are damaged; "
        'in a script, call it below  if __name__ == "__main__":',
    )


_Work = tuple[Observer, Feed | None, c_bool]
_work: _Work | None = None  # of a worker process


def _init_worker(work: _Work) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process group, and the parent ends its workers
    _work = work


def _count(shard: Shard) -> Counted:
    assert _work is not None  # the initializer ran before
    return _count_shard(_work, shard)


def _count_shard(work: _Work, shard: Shard) -> Counted:
    observer, feed, closed = work
    return observer.count(takewhile(lambda _: not closed.value, shard.images(feed)))


class DaskWorkers:
    """Pool of a Dask cluster's worker threads, which goes on when the pool is closed.

    Ranges are equal to the last bit only on processors with the same instructions. Raises DeviceError: the cluster
    cannot be reached or used.
    """

    def __init__(self, observer: Observer, feed: Feed | None, address: str) -> None:
        self._cluster, self._feed = cluster.Cluster(address), feed
        self.width = _AHEAD * self._cluster.threads
        self._work = self._cluster.submit(_worker_data, observer, feed)
        self._running: dict[int, Any] = {}

    def submit(self, shard: Shard) -> None:
        self._running[shard.start] = self._cluster.submit(_count_shard, self._work, shard)

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        future = self._running[shard.start]
        if not self._cluster.ended([future], timeout_s):
            return None
        try:
            counted: Counted = self._cluster.result(future)
        except cluster.LostWorkersError as error:
            raise _deadly_shard_error(shard, self._feed, error.why) from error
        del self._running[shard.start]
        return counted

    def close(self) -> None:
        self._cluster.cancel([self._work, *self._running.values()])
        self._cluster.close()


def _worker_data(observer: Observer, feed: Feed | None) -> _Work:
    return observer, feed, c_bool(False)


Pool = LocalWorkers | DaskWorkers


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts so far, replaced in one assignment so that an interrupt always leaves a consistent state.

    ``before`` are the histograms at the last check of the ranges, None before the first.
    """

    done: int = 0
    counts: Histograms = field(default_factory=dict)
    before: Histograms | None = None
    settled: bool = False


def fingerprint(model: str, counted: Sequence[str], feed: Feed, settings: Mapping[str, object]) -> str:
    """Return a digest of all that counts depend on: digest of the model, counted tensors, images and settings.

    Of the images it includes all names, and the arrays of the first, the middle and the last, which change with the
    preprocessing.
    """
    names = [feed.name(index) for index in range(len(feed))]
    digest = hashlib.sha256(json.dumps([model, list(counted), sorted(settings.items()), names]).encode())
    for index in sorted({0, len(feed) // 2, len(feed) - 1}):
        for name, array in sorted(feed.feeds(index).items()):
            digest.update(f"{name} {array.dtype.name} {array.shape} ".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


class Journal(AbstractContextManager["Journal"]):
    """Tally of one calibration, and the file that keeps it.

    As a context manager it writes the file on an error, and removes it otherwise. A file of another model, other images
    or other settings is started over, with a logged warning. Raises CalibrationError: a histogram in the file is
    damaged.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key, self.tally = path, key, Tally()
        if content := read_state(path, "calibration", key):
            before = None if content["before"] is None else _histograms(content["before"])
            self.tally = Tally(content["done"], _histograms(content["counts"]), before, content["settled"])
        self._saved_s = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._save()
        elif self._path is not None:
            self._path.unlink(missing_ok=True)

    def update(self, tally: Tally) -> None:
        """Store a new tally, and write the file when it is due; raise ArtifactError when it cannot be written."""
        self.tally = tally
        if time.monotonic() - self._saved_s > _SAVE_S:
            self._save()
            self._saved_s = time.monotonic()

    def _save(self) -> None:
        if self._path is not None:
            now = self.tally
            facts = {"done": now.done, "counts": now.counts, "before": now.before, "settled": now.settled}
            write_state(self._path, "calibration", self._key, **facts)


def _histograms(content: Mapping[str, Any]) -> Histograms:
    return {name: Histogram.from_json(value) for name, value in content.items()}


class Settling:
    """Check whether ranges have settled: each threshold is compared with its value one checkpoint before.

    Thresholds are computed only until one is found that moved. The last to move is checked first, so that most checks
    are cheap. Histograms of a group add up to one range.
    """

    def __init__(self, groups: Iterable[tuple[str, ...]], method: str) -> None:
        self._groups = list(dict.fromkeys(groups))
        self._method = method
        self._seen: Histograms = {}
        self._known: dict[tuple[str, ...], float] = {}  # thresholds of the histograms last seen

    def has_settled(self, before: Histograms, now: Histograms) -> bool:
        """Return whether no threshold moved from one checkpoint's histograms to the next one's."""
        known = self._known if before is self._seen else {}
        self._seen, self._known = now, {}
        for position, group in enumerate(self._groups):
            new = self._known[group] = self._threshold(now, group)
            old = known[group] if group in known else self._threshold(before, group)
            if abs(new - old) > TOLERANCE * old:
                self._groups.insert(0, self._groups.pop(position))
                return False
        return True

    def _threshold(self, histograms: Histograms, group: tuple[str, ...]) -> float:
        return threshold(Histogram.merged([histograms[name] for name in group]), self._method)


def calibrate(
    model: Model,
    feed: Feed | Iterable[Feeds],
    *,
    method: str = "mse",
    tensors: Iterable[str] | None = None,
    workers: int = 1,
    threads: int | None = None,
    dask: str = "",
    early_stop: bool = True,
    state: Path | None = None,
    bar: Bar | None = None,
    stop: threading.Event | None = None,
) -> RangeTable:
    """Run the model over images and return the ranges of its tensors. Blocks until done.

    Counts are integers, and every image runs alone on one thread. So the result depends only on the model, the images
    and the machine's instructions, not on ``workers``, ``threads``, ``dask`` or, without early stop, the order
    of images. Memory does not grow with the number of images.

    Args:
        model: prepared model (:func:`~edgert.quantization.calibrated.prepare`).
        feed: images by number, or the inputs of one image after another, which are not kept.
        method: method by which thresholds are chosen, one of
            :data:`~edgert.quantization.calibration.threshold.METHODS`; it can be changed in the table later.
        tensors: tensors to measure; None for all that need a range.
        workers: number of processes; with one, this process counts, on ``threads`` threads.
        threads: number of threads; None for one per core, at most 8.
        dask: address of a Dask scheduler, whose workers count instead.
        early_stop: whether to stop when no threshold moved by more than 0.5 % over 32 images, checked every 32 images.
            The table's warnings mention it.
        state: file that keeps the counts when the call ends early, so that the same call can continue. It is written
            every 10 s and removed at the end. One of another model, other images or other settings is started over,
            with a logged warning.
        bar: progress bar of images.
        stop: event that ends the call, within an image's time.

    Raises:
        CalibrationError: there are fewer than 8 images, one does not fit, a tensor has NaN or infinity, or ``stop`` was
            set. Workers fail repeatedly, a state file is damaged, or there is no cluster.
        EdgertError: a feed raised it.
        ArtifactError: the state cannot be written.
        BuildError: ONNX Runtime cannot run the model.
        DeviceError: ``dask`` is used without the extra.
    """
    check_method(method)
    observer = Observer(model, tensors)
    images = feed if isinstance(feed, Feed) else None
    key = _key(observer, images, state, {"method": method, "early_stop": early_stop})
    journal = Journal(state, key)
    settling = Settling(observer.parts.values(), method) if early_stop else None
    total = None if images is None else len(images)
    if isinstance(feed, Feed):
        _check_image_count(len(feed))
        shards = from_feed(feed, journal.tally.done)
    else:
        shards = from_stream(feed)
    with journal, closing(_pool(observer, images, workers, threads, dask)) as pool:
        for shard, counted in _in_order(pool, shards, journal, stop):
            journal.update(_added(journal.tally, shard.end, counted, settling))
            if bar is not None:
                bar("calibrating", shard.end, total or shard.end)
    tally = journal.tally
    _check_image_count(tally.done)
    table = RangeTable(
        model=observer.model.digest,
        images=tally.done,
        method=method,
        histograms=assemble(tally.counts, observer.parts),
        available=tally.done if total is None and not tally.settled else total,
    )
    return replace(table, warnings=tuple(_table_warnings(table, tally.settled)))


def _pool(observer: Observer, images: Feed | None, workers: int, threads: int | None, dask: str) -> Pool:
    """Return the pool that counts: workers of a cluster, processes, or threads of this process."""
    if dask:
        return DaskWorkers(observer, images, dask)
    return LocalWorkers(observer, images, threads or min(core_count(), _MAX_THREADS), workers)


def _in_order(
    pool: Pool, shards: Iterator[Shard], journal: Journal, stop: threading.Event | None
) -> Iterator[tuple[Shard, Counted]]:
    """Yield shards with their counts, in order whichever ends first, until all are done or the ranges have settled."""
    waiting: deque[Shard] = deque()
    while not journal.tally.settled:
        for shard in islice(shards, pool.width - len(waiting)):
            pool.submit(shard)
            waiting.append(shard)
        if not waiting:
            return
        counted = pool.take(waiting[0], _TICK_S)
        if counted is not None:
            yield waiting.popleft(), counted
        if stop is not None and stop.is_set():
            raise CalibrationError(
                f"calibration was stopped after {journal.tally.done} images",
                why="a stop was requested",
                fix="repeat the same call: with a state file it continues from there",
            )


def _added(tally: Tally, end: int, counted: Counted, settling: Settling | None) -> Tally:
    """Return a tally with the counts of a shard, which ends before image number ``end``."""
    known = tally.counts
    counts = {name: Histogram.merged([known[name], one]) if name in known else one for name, one in counted.items()}
    if settling is None or end % CHECKPOINT:
        return Tally(end, counts, tally.before)
    settled = tally.before is not None and settling.has_settled(tally.before, counts)
    return Tally(end, counts, counts, settled)


def _key(observer: Observer, feed: Feed | None, state: Path | None, settings: Mapping[str, object]) -> str:
    """Return the key of the state file; empty without one."""
    if state is None:
        return ""
    if feed is None:
        raise CalibrationError(
            "calibration on a stream of images cannot be resumed",
            why="the images may come in another order next time",
            fix="give a feed of numbered images, or no state file",
        )
    _check_image_count(len(feed))
    return fingerprint(observer.model.digest, observer.counted, feed, settings)


def _check_image_count(images: int) -> None:
    if images < MIN_IMAGES:
        raise CalibrationError(
            f"{images} images are too few to measure ranges" if images else "there are no images to calibrate on",
            why=f"ranges need at least {MIN_IMAGES} images, better {FEW_IMAGES} or more",
            fix="give images like those the model will see in use",
            code="E302",
        )


def _table_warnings(table: RangeTable, settled: bool) -> Iterator[str]:
    if settled:
        yield (
            f"ranges settled after {table.images} images: no threshold moved by more than {TOLERANCE:.1%} over the "
            f"last {CHECKPOINT}; no more images were counted"
        )
    elif table.images < FEW_IMAGES:
        yield f"only {table.images} images: ranges may miss what others would show; {FEW_IMAGES} or more are better"
    if table.zero:
        more = f" and {len(table.zero) - 1} more" if len(table.zero) > 1 else ""
        yield f"tensor {table.zero[0]!r}{more} was 0 in all images: any scale fits, none was measured"
