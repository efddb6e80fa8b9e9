"""Images in a fixed order, and the small shares of them that are handed out to be counted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np

from edgert.backend.base import Array
from edgert.errors import CalibrationError
from edgert.graph import TensorSpec
from edgert.quantization.calibration.observer import Feeds, Image

SHARD = 4
"""Images counted at a time by one worker, which costs one set of histograms; divides what early stop looks at."""


@runtime_checkable
class Feed(Protocol):
    """Images by number, preprocessed.

    Asked from several threads at once, and from other processes, which get a pickled copy. The same number must always
    give the same arrays.
    """

    def __len__(self) -> int:
        """How many images there are."""
        ...

    def name(self, index: int) -> str:
        """What to call one in messages: its file, or the video and the frame."""
        ...

    def feeds(self, index: int) -> Feeds:
        """One image: input name → array of the model's shape and type (float32), the caller's own."""
        ...


Batches = Iterable[Array | Mapping[str, Array]]
"""Preprocessed images as they come, one or more at a time along the first dimension: arrays, for a model of one
input, or mappings from input name to array."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Consecutive images.

    Attributes:
        start: number of the first.
        names: what they are called.
        arrays: their inputs; None when a feed is asked for them.
    """

    start: int
    names: tuple[str, ...]
    arrays: tuple[Feeds, ...] | None = None

    @property
    def end(self) -> int:
        """Number of the image behind the last."""
        return self.start + len(self.names)

    def images(self, feed: Feed | None) -> Iterator[Image]:
        """Each image with its name, asked for when its turn comes."""
        for position, name in enumerate(self.names):
            yield name, self._feeds(position, feed)

    def _feeds(self, position: int, feed: Feed | None) -> Feeds:
        if self.arrays is not None:
            return self.arrays[position]
        assert feed is not None  # whoever makes shards without arrays has a feed
        return feed.feeds(self.start + position)


def from_feed(feed: Feed, start: int = 0) -> Iterator[Shard]:
    """The images of a feed from number ``start`` on."""
    for first in range(start, len(feed), SHARD):
        yield Shard(first, tuple(feed.name(index) for index in range(first, min(first + SHARD, len(feed)))))


def from_batches(batches: Batches, specs: Sequence[TensorSpec]) -> Iterator[Shard]:
    """Images as they come, copied: whoever makes them may use the same memory again. How they are grouped leaves no
    trace.

    Args:
        specs: the model's inputs.

    Raises:
        CalibrationError: an item has not all of the inputs, or its arrays do not divide into images.
    """
    rows = chain.from_iterable(_rows(item, number, specs) for number, item in enumerate(batches))
    start, waiting = 0, []
    for feeds in rows:
        waiting.append(feeds)
        if len(waiting) == SHARD:
            yield _handed(start, waiting)
            start, waiting = start + SHARD, []
    if waiting:
        yield _handed(start, waiting)


def _handed(start: int, feeds: Sequence[Feeds]) -> Shard:
    names = tuple(f"image {number}" for number in range(start, start + len(feeds)))
    return Shard(start, names, tuple(feeds))


def _rows(item: object, number: int, specs: Sequence[TensorSpec]) -> Iterator[Feeds]:
    """One item as images: as many rows of each input as the model takes at a time."""
    arrays = _by_name(item, number, specs)
    counts = {spec.name: _count(arrays[spec.name], spec, number) for spec in specs}
    if len(set(counts.values())) > 1:
        raise _unfit(number, f"it has different numbers of images for each input: {counts}")
    for position in range(next(iter(counts.values()))):
        yield {spec.name: _row(arrays[spec.name], spec, position) for spec in specs}


def _by_name(item: object, number: int, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    given: Mapping[str, Any]
    if isinstance(item, Mapping):
        given = item
    elif len(specs) == 1:
        given = {specs[0].name: item}
    else:
        raise _unfit(number, f"it is one array, and the model has {len(specs)} inputs")
    missing = [spec.name for spec in specs if spec.name not in given]
    if missing:
        raise _unfit(number, f"it has nothing for input {missing[0]!r}, only {', '.join(map(str, given))}")
    return {spec.name: np.asarray(given[spec.name]) for spec in specs}


def _count(array: Array, spec: TensorSpec, number: int) -> int:
    if not spec.shape:
        return 1
    rows = _batch(spec)
    if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or array.shape[0] % rows:
        raise _unfit(number, f"it is {array.dtype.name}{list(array.shape)}; the model takes {spec} or several of these")
    return len(array) // rows


def _batch(spec: TensorSpec) -> int:
    """Rows the model takes at a time; a prepared model leaves no dimension open."""
    return next(dim for dim in spec.shape if isinstance(dim, int))


def _row(array: Array, spec: TensorSpec, position: int) -> Array:
    if not spec.shape:
        return np.array(array)
    rows = _batch(spec)
    return np.array(array[position * rows : (position + 1) * rows])


def _unfit(number: int, why: str) -> CalibrationError:
    return CalibrationError(
        f"item {number} of the images does not fit the model",
        why=why,
        fix="yield arrays, or mappings from input name to array, with the images along the first dimension",
    )
