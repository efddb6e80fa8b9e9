"""Measuring ranges: images run through the float model, and every tensor's values are counted."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from edgert.board.host import core_count
from edgert.errors import CalibrationError
from edgert.files import replace_text
from edgert.graph import Model, inputs
from edgert.quantization.calibration import workers as parallel
from edgert.quantization.calibration.ranges import VERSION, RangeTable, read_unfinished, wrong_file
from edgert.quantization.calibration.threshold import PERCENTILE, check, threshold
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Observer, assemble

log = logging.getLogger("edgert.quantize")

Progress = Callable[[int, int | None, str], object]
"""Called with the images done, how many there are (None when that is not known) and the last one's name."""
Histograms = Mapping[str, Histogram]

MIN_IMAGES = 8
"""Least number of images: fewer do not measure a network's ranges, and are refused."""
FEW_IMAGES = 32
"""Fewer images give a warning: NVIDIA's guide for TensorRT's calibrators recommends about 500 for ImageNet."""
CHECKPOINT = 32
"""Images between two checks of the ranges."""
TOLERANCE = 0.005
"""Ranges have settled when none moved by more than this share of itself over :data:`CHECKPOINT` images. Less than
one INT8 step (1/127) at the largest value."""

_TICK_S = 0.1  # how long a stop may go unnoticed
_MAX_THREADS = 8  # of one process, by default; each has the tensors of one slice in memory
_SAVE_S = 10.0  # between two writes of a state file, each of which takes a fraction of a second
_FORMAT, _HOLDS = "edgert calibration in progress", "calibration"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts so far, replaced in one assignment so that an interrupt always leaves a consistent state.

    Attributes:
        done: images counted: all those before number ``done``.
        counts: counted tensor → its histogram over them.
        before: the histograms at the last check of the ranges, if there was one.
        settled: whether the ranges had settled by then.
    """

    done: int = 0
    counts: Histograms = field(default_factory=dict)
    before: Histograms | None = None
    settled: bool = False


def fingerprint(model: str, counted: Sequence[str], feed: parallel.Feed, settings: Mapping[str, object]) -> str:
    """Return a digest of all that counts depend on: model (its digest), counted tensors, images, settings.

    Of the images it takes all names, and the arrays of the first, the middle and the last one. That shows a changed
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
    """The tally of one calibration and its file.

    A context manager: on an error the file is brought up to date, otherwise it is removed. A file of another model,
    other images or other settings is started over, with a logged warning.

    Args:
        path: the file; None keeps the tally in memory only.
        key: what the counts depend on, from :func:`fingerprint`.

    Raises:
        CalibrationError: the file is another kind of file, damaged, or cannot be read.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self.tally = Tally() if path is None or not path.exists() else self._read(path)
        self._saved_s = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._save()
        elif self._path is not None:
            self._path.unlink(missing_ok=True)

    def replace(self, tally: Tally) -> None:
        """Store a new tally, and write the file when that is due. Raises ArtifactError: the file cannot be written."""
        self.tally = tally
        if time.monotonic() - self._saved_s > _SAVE_S:
            self._save()
            self._saved_s = time.monotonic()

    def _save(self) -> None:
        if self._path is None:
            return
        content = {
            "format": _FORMAT,
            "version": VERSION,
            "key": self._key,
            "done": self.tally.done,
            "counts": self.tally.counts,
            "before": self.tally.before,
            "settled": self.tally.settled,
        }
        replace_text(self._path, json.dumps(content, default=Histogram.to_json))

    def _read(self, path: Path) -> Tally:
        content = read_unfinished(path, _FORMAT, _HOLDS)
        if content.get("version") != VERSION or content.get("key") != self._key:
            log.warning("%s belongs to another model, other images or other settings; started over", path)
            return Tally()
        try:
            before = None if content["before"] is None else _histograms(content["before"])
            return Tally(int(content["done"]), _histograms(content["counts"]), before, bool(content["settled"]))
        except (KeyError, TypeError, ValueError, AttributeError, CalibrationError) as error:
            raise wrong_file(path, _HOLDS, str(error)) from error


def _histograms(content: Mapping[str, Any]) -> Histograms:
    return {name: Histogram.from_json(value) for name, value in content.items()}


class Settling:
    """A check whether ranges have settled: each threshold is compared with its value one checkpoint before.

    Thresholds are computed only until one is found that moved. The last to move goes first, so most checks cost next to
    nothing.

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
        whole = Histogram.merged([histograms[name] for name in group])
        return threshold(whole, self._method, percentile=self._percentile)


def calibrate(
    model: Model,
    feed: parallel.Feed | parallel.Batches,
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
    """Run the model over images and return the ranges of its tensors.

    Blocks until done. Counts are whole numbers, and every image runs by itself on one thread. So the result depends on
    the model, the images and the machine's instructions alone. Grouping, ``workers``, ``threads`` and ``dask`` do not
    change it; without early stop, the order of images does not either. Memory does not grow with the number of images.

    Args:
        model: a prepared model (:func:`~edgert.quantization.calibrated.prepare`).
        feed: images by number, or preprocessed arrays as they come, which are not kept.
        method: how thresholds are chosen, one of :data:`~edgert.quantization.calibration.threshold.METHODS`; the table
            can be given another later.
        percentile: the share of values, in percent, that method ``percentile`` keeps.
        tensors: those wanted; by default all that need a range.
        workers: processes. With one, this process counts, on ``threads`` threads.
        threads: by default one per core, at most 8.
        dask: address of a Dask scheduler, whose workers count instead.
        early_stop: stop when no threshold moved by more than 0.5 % over 32 images, checked every 32 images in their
            order. The table's warnings mention it.
        state: a file that keeps the counts when the call ends early, whatever the reason. The same call continues from
            it. It is written every 10 s and removed at the end. One of another model, other images or other settings is
            started over, with a logged warning.
        progress: called after every few images.
        stop: ends the call when set, within an image's time.

    Raises:
        CalibrationError: fewer than 8 images; one that does not fit; NaN or infinity in a tensor; or a stop. Or workers
            fail repeatedly, a file holds no state, or there is no cluster. Images and tensors are named.
        EdgertError: what a feed raises.
        ArtifactError: the state cannot be written.
        BuildError: ONNX Runtime cannot run the model.
        DeviceError: ``dask`` without the extra.
    """
    check(method, percentile)
    observer = Observer(model, tensors)
    images = feed if isinstance(feed, parallel.Feed) else None
    key = _key(observer, images, state, {"method": method, "percentile": percentile, "early_stop": early_stop})
    run = _Run(
        journal=Journal(state, key),
        settling=Settling(observer.parts.values(), method, percentile) if early_stop else None,
        progress=progress,
        total=None if images is None else len(images),
        stop=stop or threading.Event(),
    )
    if isinstance(feed, parallel.Feed):
        _check_number(len(feed))
        shards = parallel.from_feed(feed, run.journal.tally.done)
    else:
        shards = parallel.from_batches(feed, inputs(model))
    with run.journal, closing(_pool(observer, images, workers, threads, dask)) as pool:
        run.collect(pool, shards)
    _check_number(run.journal.tally.done)
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


def _pool(
    observer: Observer, images: parallel.Feed | None, workers: int, threads: int | None, dask: str
) -> parallel.Pool:
    """Return what counts: the workers of a cluster, processes, or threads of this process."""
    if dask:
        return parallel.Cluster(observer, images, dask)
    if workers > 1:
        return parallel.Processes(observer, images, workers)
    return parallel.Threads(observer, images, threads or min(core_count(), _MAX_THREADS))


@dataclass
class _Run:
    """One call: shards are handed out, and results added in the order of the images whichever finishes first."""

    journal: Journal
    settling: Settling | None
    progress: Progress | None
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
                self._add(waiting.popleft(), counted)
            if self.stop.is_set():
                raise CalibrationError(
                    f"calibration was stopped after {self.journal.tally.done} images",
                    why="a stop was requested",
                    fix="repeat the same call: with a state file it continues from there",
                )

    def _add(self, shard: parallel.Shard, counted: Histograms) -> None:
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


def _key(observer: Observer, feed: parallel.Feed | None, state: Path | None, settings: Mapping[str, object]) -> str:
    """Return the key that a state file must have been written for; empty without one."""
    if state is None:
        return ""
    if feed is None:
        raise CalibrationError(
            "calibration on a stream of images cannot be resumed",
            why="the images may come in another order next time",
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
            code="E302",
        )


def _notes(table: RangeTable, settled: bool) -> Iterator[str]:
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
