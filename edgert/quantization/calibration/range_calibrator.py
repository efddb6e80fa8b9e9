"""Ranges measured: images through the float model, every tensor's values counted."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgert.board.host import core_count
from edgert.errors import CalibrationError
from edgert.graph import Model, inputs
from edgert.quantization.calibration.checkpoint import Histograms, Journal, Tally, fingerprint
from edgert.quantization.calibration.dask_cluster import Cluster
from edgert.quantization.calibration.observer import Observer, assemble
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.shards import Batches, Feed, Shard, from_batches, from_feed
from edgert.quantization.calibration.threshold import PERCENTILE, check, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.workers import Pool, Processes, Threads
from edgert.quantization.run import Progress

# Whether more images would still move the ranges.

CHECKPOINT = 32
"""Images between two looks at the ranges."""
TOLERANCE = 0.005
"""Ranges have settled when none moved by more than this share of itself over :data:`CHECKPOINT` images. Less than
one INT8 step (1/127) at the largest value."""


class Settling:
    """Compares each range's threshold with what it was one checkpoint before.

    Thresholds are computed only until one is found that moved, the last to move first: most looks cost next to nothing.

    Args:
        groups: tensors whose histograms add up to one range.
        method, percentile: how thresholds are chosen.
    """

    def __init__(self, groups: Iterable[tuple[str, ...]], method: str, percentile: float = PERCENTILE) -> None:
        self._groups = list(dict.fromkeys(groups))
        self._method, self._percentile = method, percentile
        self._seen: Histograms = {}
        self._known: dict[tuple[str, ...], float] = {}  # thresholds of the histograms last seen

    def has_settled(self, before: Histograms, now: Histograms) -> bool:
        """Whether no threshold moved from one checkpoint's histograms to the next one's."""
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
        whole = Histogram.merged([histograms[name] for name in group])
        return threshold(whole, self._method, percentile=self._percentile)


MIN_IMAGES = 8
"""Fewer are no measure of a network's ranges, and are refused."""
FEW_IMAGES = 32
"""Fewer are worth a warning: NVIDIA's guide for TensorRT's calibrators speaks of about 500 for ImageNet."""

_TICK_S = 0.1  # how long a stop may go unnoticed
_MAX_THREADS = 8  # of one process, by default; each has the tensors of one slice in memory


def calibrate(
    model: Model,
    feed: Feed | Batches,
    *,
    method: str = "mse",
    percentile: float = PERCENTILE,
    tensors: Iterable[str] | None = None,
    workers: int = 1,
    threads: int | None = None,
    dask: str = "",
    early_stop: bool = True,
    state: Path | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> RangeTable:
    """Runs the model over images and returns the ranges of its tensors. Blocks until done.

    Counts are whole numbers, and every image runs by itself on one thread: the result depends on the model, the
    images and the machine's instructions, not on their grouping, on ``workers``, ``threads`` or ``dask``; without
    early stop neither on their order. Memory does not grow with the number of images.

    Args:
        model: a prepared model (:func:`~edgert.quantization.prepare.prepare`).
        feed: images by number, or preprocessed arrays as they come, which are not kept.
        method: how thresholds are chosen, one of :data:`~edgert.quantization.calibration.threshold.METHODS`; the
        table can be given
            another later.
        percentile: what the method of that name means.
        tensors: those wanted; by default all that are worth a range.
        workers: processes. With one, this process counts, on ``threads`` threads (by default one per core, at most 8).
        dask: address of a Dask scheduler, whose workers count instead.
        early_stop: stop when no threshold moved by more than 0.5 % over 32 images, looked at every 32 images in
            their order. The table's warnings mention it.
        state: a file that keeps what was counted when the call ends early, for whatever reason, and from which the same
            call goes on; written every 10 s, removed at the end. One of another model, other images or other settings
            is started over, with a logged warning.
        progress: called after every few images.
        stop: ends the call when set, within an image's time.

    Raises:
        CalibrationError: fewer than 8 images; one that does not fit; NaN or infinity in a tensor; stopped; workers
            that keep dying over an image; a file that holds no state; no cluster. Images and tensors are named.
        EdgertError: what a feed raises.
        ArtifactError: the state cannot be written.
        BuildError: ONNX Runtime cannot run the model.
        DeviceError: ``dask`` without the extra.
    """
    check(method, percentile)
    observer = Observer(model, tensors)
    images = feed if isinstance(feed, Feed) else None
    key = _key(observer, images, state, {"method": method, "percentile": percentile, "early_stop": early_stop})
    run = _Run(
        journal=Journal(state, key),
        settling=Settling(observer.parts.values(), method, percentile) if early_stop else None,
        progress=progress,
        total=None if images is None else len(images),
        stop=stop or threading.Event(),
    )
    if isinstance(feed, Feed):
        _check_number(len(feed))
        shards = from_feed(feed, run.journal.tally.done)
    else:
        shards = from_batches(feed, inputs(model))
    with run.journal, closing(_pool(observer, images, workers, threads, dask)) as pool:
        run.collect(pool, shards)
    _check_number(run.journal.tally.done)
    return _table(observer, run, method, percentile)


@dataclass
class _Run:
    """One call: shards handed out, results added in the order of the images whoever finishes first."""

    journal: Journal
    settling: Settling | None
    progress: Progress | None
    total: int | None
    stop: threading.Event

    def collect(self, pool: Pool, shards: Iterator[Shard]) -> None:
        """Counts until the images are through or the ranges have settled."""
        waiting: deque[Shard] = deque()
        while not self.journal.tally.settled:
            for shard in islice(shards, pool.width - len(waiting)):
                pool.submit(shard)
                waiting.append(shard)
            if not waiting:
                return
            counted = pool.take(waiting[0], _TICK_S)
            if counted is not None:
                self._add(waiting.popleft(), counted)
            if self.stop.is_set():
                raise self._stopped()

    def _add(self, shard: Shard, counted: Histograms) -> None:
        tally = self.journal.tally
        known = tally.counts
        counts = {name: Histogram.merged([known[name], one]) if name in known else one for name, one in counted.items()}
        before, settled = tally.before, False
        if self.settling is not None and shard.end % CHECKPOINT == 0:
            settled = before is not None and self.settling.has_settled(before, counts)
            before = counts
        self.journal.replace(Tally(shard.end, counts, before, settled))
        if self.progress is not None:
            self.progress(shard.end, self.total, shard.names[-1])

    def _stopped(self) -> CalibrationError:
        done = self.journal.tally.done
        return CalibrationError(
            f"calibration was stopped after {done} images",
            why="it was asked to",
            fix="the same call goes on from there if it has a state file",
        )


def _key(observer: Observer, feed: Feed | None, state: Path | None, settings: Mapping[str, object]) -> str:
    """What a state file must have been written for; empty without one."""
    if state is None:
        return ""
    if feed is None:
        raise CalibrationError(
            "images that are handed over as they come cannot be gone on with later",
            why="there is no telling whether they come in the same order again",
            fix="give a feed of numbered images, or no state file",
        )
    _check_number(len(feed))
    return fingerprint(observer.model.digest, observer.counted, feed, settings)


def _check_number(images: int) -> None:
    if images < MIN_IMAGES:
        raise CalibrationError(
            f"{images} images are too few to measure ranges" if images else "there are no images to calibrate on",
            why=f"ranges need at least {MIN_IMAGES}, better {FEW_IMAGES} or more; none are ever invented",
            fix="give images like those the model will see in use",
        )


def _pool(observer: Observer, feed: Feed | None, workers: int, threads: int | None, dask: str) -> Pool:
    if dask:
        return Cluster(observer, feed, dask)
    if workers > 1:
        return Processes(observer, feed, workers)
    return Threads(observer, feed, threads or min(core_count(), _MAX_THREADS))


def _table(observer: Observer, run: _Run, method: str, percentile: float) -> RangeTable:
    tally = run.journal.tally
    table = RangeTable(
        model=observer.model.digest,
        images=tally.done,
        method=method,
        histograms=assemble(tally.counts, observer.parts),
        percentile=percentile,
        available=tally.done if run.total is None and not tally.settled else run.total,
    )
    return table.with_warnings(*_notes(table, tally.settled))


def _notes(table: RangeTable, settled: bool) -> Iterator[str]:
    if settled:
        yield (
            f"ranges settled after {table.images} images: no threshold moved by more than {TOLERANCE:.1%} over the "
            f"last {CHECKPOINT}; no more were looked at"
        )
    elif table.images < FEW_IMAGES:
        yield f"only {table.images} images: ranges may miss what others would show; {FEW_IMAGES} or more are better"
    if table.zero:
        more = f" and {len(table.zero) - 1} more" if len(table.zero) > 1 else ""
        yield f"tensor {table.zero[0]!r}{more} was 0 in all images: any scale fits, none was measured"
