"""Workers that count images in small shards: threads, processes of this machine, or a Dask cluster."""

import multiprocessing
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from ctypes import c_bool
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edgert.backend.base import Array
from edgert.cluster import Cluster as DaskCluster, LostWorkersError
from edgert.errors import CalibrationError
from edgert.graph import TensorSpec
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Feeds, Image, Observer

SHARD = 4
"""Number of images of a shard, which costs one set of histograms; a divisor of the interval of early stop."""


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


Batches = Iterable[Array | Mapping[str, Array]]
"""Preprocessed images, one or more at a time along the first dimension: arrays for a model of one input, or mappings
from input name to array."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive images. Without arrays, a feed has them."""

    start: int
    names: tuple[str, ...]
    arrays: tuple[Feeds, ...] | None = None

    @property
    def end(self) -> int:
        """Number of the image after the last one."""
        return self.start + len(self.names)

    def images(self, feed: Feed | None) -> Iterator[Image]:
        """Yield the name and inputs of each image, loaded when it is requested."""
        for position, name in enumerate(self.names):
            if self.arrays is not None:
                yield name, self.arrays[position]
            else:
                assert feed is not None  # shards without arrays come from a feed
                yield name, feed.feeds(self.start + position)


def from_feed(feed: Feed, start: int = 0) -> Iterator[Shard]:
    """Yield the images of a feed from number ``start`` on."""
    for first in range(start, len(feed), SHARD):
        yield Shard(first, tuple(feed.name(index) for index in range(first, min(first + SHARD, len(feed)))))


def from_batches(batches: Batches, specs: Sequence[TensorSpec]) -> Iterator[Shard]:
    """Yield copies of images in shards, whatever the size of the batches; the caller may reuse its arrays.

    Raises CalibrationError: an item lacks an input, or its arrays do not divide into images.
    """
    rows = chain.from_iterable(_rows(item, number, specs) for number, item in enumerate(batches))
    start = 0
    while feeds := tuple(islice(rows, SHARD)):
        yield Shard(start, tuple(f"image {start + number}" for number in range(len(feeds))), feeds)
        start += len(feeds)


def _rows(item: Any, number: int, specs: Sequence[TensorSpec]) -> Iterator[Feeds]:
    """Yield the images of one item, each with as many rows as the model takes at a time."""
    if not isinstance(item, Mapping):
        if len(specs) > 1:
            raise _item_error(number, f"it is one array, and the model has {len(specs)} inputs")
        item = {specs[0].name: item}
    stacks = {}
    for spec in specs:
        if spec.name not in item:
            raise _item_error(number, f"it has nothing for input {spec.name!r}, only {', '.join(map(str, item))}")
        array = np.asarray(item[spec.name])
        if not spec.shape:
            stacks[spec.name] = array[None]
            continue
        rows = next(dim for dim in spec.shape if isinstance(dim, int))  # a prepared model has no open ones
        if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or array.shape[0] % rows:
            raise _item_error(
                number, f"it is {array.dtype.name}{list(array.shape)}; the model takes {spec} or several of these"
            )
        stacks[spec.name] = array.reshape(len(array) // rows, *spec.shape)
    counts = {name: len(stack) for name, stack in stacks.items()}
    if len(set(counts.values())) > 1:
        raise _item_error(number, f"it has different numbers of images for each input: {counts}")
    for position in range(min(counts.values())):
        yield {name: np.array(stack[position]) for name, stack in stacks.items()}


def _item_error(number: int, why: str) -> CalibrationError:
    return CalibrationError(
        f"item {number} of the images does not fit the model",
        why=why,
        fix="yield arrays, or mappings from input name to array, with the images along the first dimension",
    )


Counted = dict[str, Histogram]

_AHEAD = 2  # shards per worker: one being counted and one waiting, so that no worker idles
_DEATHS = 3
"""Number of dead workers after which a shard is an error; fewer can be killed by chance, for want of memory."""


class Pool(Protocol):
    """Workers that count several shards at a time. It takes ``width`` shards at once."""

    width: int

    def submit(self, shard: Shard) -> None:
        """Submit a shard without blocking."""

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """Return the counts of the shard that was submitted first; None when they take longer than the timeout.

        Raises EdgertError: counting failed, or the workers did.
        """

    def close(self) -> None:
        """Cancel shards that have not begun, wait for the images being counted, and release all resources."""


class Threads(Pool):
    """Pool of threads that share one observer; see :class:`Pool`."""

    def __init__(self, observer: Observer, feed: Feed | None, threads: int) -> None:
        self.width = _AHEAD * threads
        self._observer, self._feed = observer, feed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="calibrate")
        self._running: dict[int, Future[Counted]] = {}
        self._closed = threading.Event()

    def submit(self, shard: Shard) -> None:
        images = takewhile(lambda _: not self._closed.is_set(), shard.images(self._feed))
        self._running[shard.start] = self._pool.submit(self._observer.count, images)

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        if not wait([self._running[shard.start]], timeout_s).done:
            return None
        return self._running.pop(shard.start).result()

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Processes(Pool):
    """Pool of new processes, each with its own observer; see :class:`Pool`.

    When a process dies, all shards that are not done are counted again, one at a time, which finds a shard that kills
    its worker. Counts stay exact, since a shard is added all at once.
    """

    def __init__(self, observer: Observer, feed: Feed | None, workers: int) -> None:
        self.width = _AHEAD * workers
        self._workers = workers
        self._context = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
        self._closed = self._context.RawValue(c_bool, False)  # no lock, which a killed worker could hold
        self._work: _Work = observer, feed, self._closed
        self._pool = self._new_pool()
        self._running: dict[int, tuple[Shard, Future[Counted]]] = {}
        self._waiting: dict[int, Shard] = {}
        self._deaths: dict[int, int] = {}  # shard → workers that died while it was being counted

    def submit(self, shard: Shard) -> None:
        """Submit a shard, after any that may have killed a worker."""
        self._waiting[shard.start] = shard
        if not self._deaths:
            self._start_waiting()

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """Return counts as :class:`Pool` does; raise CalibrationError when workers die repeatedly over this shard."""
        try:
            if shard.start in self._waiting:
                self._start(shard)
            future = self._running[shard.start][1]
            if not wait([future], timeout_s).done:
                return None
            counted = future.result()
        except BrokenProcessPool as error:
            self._restart(shard, error)
            return None
        del self._running[shard.start]
        self._deaths.pop(shard.start, None)
        if not self._deaths:
            self._start_waiting()
        return counted

    def close(self) -> None:
        self._closed.value = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers, mp_context=self._context, initializer=_init_worker, initargs=(self._work,)
        )

    def _start(self, shard: Shard) -> None:
        self._running[shard.start] = shard, self._pool.submit(_count, shard)
        del self._waiting[shard.start]

    def _start_waiting(self) -> None:
        # with a broken pool the shard keeps waiting; taking the next result starts new workers
        with suppress(BrokenProcessPool):
            for shard in list(self._waiting.values()):
                self._start(shard)

    def _restart(self, shard: Shard, cause: BrokenProcessPool) -> None:
        """Start new workers, and queue the unfinished shards of the old ones again."""
        lost = {
            start: found
            for start, (found, future) in self._running.items()
            if not future.done() or isinstance(future.exception(), BrokenProcessPool)
        }
        for start in {*lost, shard.start}:
            self._deaths[start] = self._deaths.get(start, 0) + 1
        if self._deaths[shard.start] >= _DEATHS:
            raise _deadly_shard_error(shard, f"{_DEATHS} worker processes died over them") from cause
        self._running = {start: found for start, found in self._running.items() if start not in lost}
        self._waiting = dict(sorted({**self._waiting, **lost}.items()))
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._new_pool()


def _deadly_shard_error(shard: Shard, why: str) -> CalibrationError:
    """Return the error for images that kill every worker."""
    return CalibrationError(
        f"counting {', '.join(map(repr, shard.names))} fails repeatedly",
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
    observer, feed, closed = _work
    return observer.count(takewhile(lambda _: not closed.value, shard.images(feed)))


class Cluster(Pool):
    """Pool of a Dask cluster's worker threads; see :class:`Pool` and :class:`edgert.cluster.Cluster`.

    Ranges are equal to the last bit only on processors with the same instructions. Raises DeviceError: the cluster
    cannot be reached or used.
    """

    def __init__(self, observer: Observer, feed: Feed | None, address: str) -> None:
        self._cluster = DaskCluster(address)
        self.width = _AHEAD * self._cluster.threads
        self._work = self._cluster.submit(_worker_data, observer, feed)
        self._running: dict[int, Any] = {}

    def submit(self, shard: Shard) -> None:
        self._running[shard.start] = self._cluster.submit(_count_on_cluster, self._work, shard)

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """See :class:`Pool`.

        Raises CalibrationError: no worker survives this shard. Raises DeviceError: the cluster is gone.
        """
        future = self._running[shard.start]
        if not self._cluster.ended([future], timeout_s):
            return None
        try:
            counted: Counted = self._cluster.result(future)
        except LostWorkersError as error:
            raise _deadly_shard_error(shard, error.why) from error
        del self._running[shard.start]
        return counted

    def close(self) -> None:
        """Release the pool; the cluster goes on."""
        self._cluster.cancel([self._work, *self._running.values()])
        self._cluster.close()


def _worker_data(observer: Observer, feed: Feed | None) -> tuple[Observer, Feed | None]:
    return observer, feed


def _count_on_cluster(work: tuple[Observer, Feed | None], shard: Shard) -> Counted:
    observer, feed = work
    return observer.count(shard.images(feed))
