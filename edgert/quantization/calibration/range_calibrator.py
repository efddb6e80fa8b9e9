"""Measurement of ranges: images run through the float model, and the values of every tensor are counted."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from edgert.board.host import core_count
from edgert.errors import CalibrationError
from edgert.graph import Model, inputs
from edgert.quantization.calibration import workers as parallel
from edgert.quantization.calibration.ranges import RangeTable, read_state, write_state
from edgert.quantization.calibration.threshold import check_method, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Observer, assemble
from edgert.reporter import Bar

log = logging.getLogger("edgert.quantize")

Histograms = Mapping[str, Histogram]

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


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts so far, replaced in one assignment so that an interrupt always leaves a consistent state.

    ``before`` are the histograms at the last check of the ranges, None before the first.
    """

    done: int = 0
    counts: Histograms = field(default_factory=dict)
    before: Histograms | None = None
    settled: bool = False


def fingerprint(model: str, counted: Sequence[str], feed: parallel.Feed, settings: Mapping[str, object]) -> str:
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


class Journal:
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

    def __enter__(self) -> Journal:
        return self

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
    feed: parallel.Feed | parallel.Batches,
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
    and the machine's instructions, not on batches, ``workers``, ``threads``, ``dask`` or, without early stop, the order
    of images. Memory does not grow with the number of images.

    Args:
        model: prepared model (:func:`~edgert.quantization.calibrated.prepare`).
        feed: images by number, or preprocessed arrays one after another, which are not kept.
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
    images = feed if isinstance(feed, parallel.Feed) else None
    key = _key(observer, images, state, {"method": method, "early_stop": early_stop})
    run = _Calibration(
        journal=Journal(state, key),
        settling=Settling(observer.parts.values(), method) if early_stop else None,
        bar=bar,
        total=None if images is None else len(images),
        stop=stop or threading.Event(),
    )
    if isinstance(feed, parallel.Feed):
        _check_image_count(len(feed))
        shards = parallel.from_feed(feed, run.journal.tally.done)
    else:
        shards = parallel.from_batches(feed, inputs(model))
    with run.journal, closing(_pool(observer, images, workers, threads, dask)) as pool:
        run.collect(pool, shards)
    _check_image_count(run.journal.tally.done)
    tally = run.journal.tally
    table = RangeTable(
        model=observer.model.digest,
        images=tally.done,
        method=method,
        histograms=assemble(tally.counts, observer.parts),
        available=tally.done if run.total is None and not tally.settled else run.total,
    )
    return table.with_warnings(*_table_warnings(table, tally.settled))


def _pool(
    observer: Observer, images: parallel.Feed | None, workers: int, threads: int | None, dask: str
) -> parallel.Pool:
    """Return the pool that counts: workers of a cluster, processes, or threads of this process."""
    if dask:
        return parallel.Cluster(observer, images, dask)
    if workers > 1:
        return parallel.Processes(observer, images, workers)
    return parallel.Threads(observer, images, threads or min(core_count(), _MAX_THREADS))


@dataclass
class _Calibration:
    """State of one call; results are added in the order of the images, whichever finishes first."""

    journal: Journal
    settling: Settling | None
    bar: Bar | None
    total: int | None
    stop: threading.Event

    def collect(self, pool: parallel.Pool, shards: Iterator[parallel.Shard]) -> None:
        """Count until all images are done or the ranges have settled."""
        waiting: deque[parallel.Shard] = deque()
        while not self.journal.tally.settled:
            for shard in islice(shards, pool.width - len(waiting)):
                pool.submit(shard)
                waiting.append(shard)
            if not waiting:
                return
            counted = pool.take(waiting[0], _TICK_S)
            if counted is not None:
                self._add_counted(waiting.popleft(), counted)
            if self.stop.is_set():
                raise CalibrationError(
                    f"calibration was stopped after {self.journal.tally.done} images",
                    why="a stop was requested",
                    fix="repeat the same call: with a state file it continues from there",
                )

    def _add_counted(self, shard: parallel.Shard, counted: Histograms) -> None:
        tally = self.journal.tally
        known = tally.counts
        counts = {name: Histogram.merged([known[name], one]) if name in known else one for name, one in counted.items()}
        before, settled = tally.before, False
        if self.settling is not None and shard.end % CHECKPOINT == 0:
            settled = before is not None and self.settling.has_settled(before, counts)
            before = counts
        self.journal.update(Tally(shard.end, counts, before, settled))
        if self.bar is not None:
            self.bar("calibrating", shard.end, self.total or shard.end)


def _key(observer: Observer, feed: parallel.Feed | None, state: Path | None, settings: Mapping[str, object]) -> str:
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
