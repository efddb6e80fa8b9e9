"""Histogram of the magnitudes in one tensor, in 16 KiB for any number of values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import threading
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.errors import CalibrationError

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

BINS = 2048
"""Number of bins, the default of NVIDIA's pytorch_quantization (calib/histogram.py, num_bins)."""

MIN_EXPONENT = -32
"""Exponent of the smallest range; values below it count as zero, as float16 ends at 2**-24."""

_BLOCK = 2**18
"""Number of values counted at a time: scratch memory stays in cache, and OpenCV's float32 counts stay exact, which they
are up to 2**24."""

_LOG2_BINS = BINS.bit_length() - 1

_MANY = 2**16
"""Number of values from which OpenCV counts 16-bit integers in a third of the time. A count then waits for the one
before if both are in one bin, as in a run of zeros, so neighbors are counted in two banks."""

_BANK = BINS + 32
"""Distance between the banks in bins; a power of two would put both banks into one set of the cache."""

_OFFSETS = (np.arange(_BLOCK) % 2 * _BANK).astype(np.uint16)
_OFFSETS.flags.writeable = False


class Histogram:
    """2,048 counts of |x| over [0, 2**exponent), with the exact extremes.

    A value x is counted in bin ``floor(|x| * 2**(11 - exponent))``. The exponent is the smallest from ``MIN_EXPONENT``
    on that holds every value. For a larger value the range doubles by adding neighboring counts, which is exact. So a
    histogram depends only on how often each value was added, not on order, batches or merging.

    Not thread-safe; different histograms may be added to by different threads at once, and most of the counting runs
    without the interpreter lock.
    """

    __slots__ = ("_high", "_low", "counts", "exponent", "values")

    def __init__(self) -> None:
        self.counts: Counts = np.zeros(BINS, np.int64)
        self.exponent = MIN_EXPONENT
        self.values = 0
        self._low, self._high = math.inf, -math.inf

    @classmethod
    def merged(cls, histograms: Iterable[Histogram]) -> Histogram:
        """Return a new histogram of all values of the given ones."""
        whole = cls()
        for histogram in histograms:
            whole.merge(histogram)
        return whole

    @property
    def low(self) -> float:
        """Exact smallest value; 0 when there is none."""
        return self._low if self.values else 0.0

    @property
    def high(self) -> float:
        """Exact largest value; 0 when there is none."""
        return self._high if self.values else 0.0

    @property
    def amax(self) -> float:
        """Exact largest magnitude."""
        return max(-self.low, self.high)

    @property
    def is_zero(self) -> bool:
        """Whether no value reaches 2**MIN_EXPONENT, so that 8 bits would keep none."""
        return self.amax < 2.0**MIN_EXPONENT

    @property
    def width(self) -> float:
        """Width of one bin."""
        return 2.0 ** (self.exponent - _LOG2_BINS)

    @property
    def digest(self) -> str:
        """SHA-256 in hex of all that the histogram holds; equal values give equal digests on every machine."""
        facts = [self.exponent, self.low.hex(), self.high.hex(), self.values]
        return hashlib.sha256(f"{facts}\n".encode() + self.counts.astype("<i8").tobytes()).hexdigest()

    def add(self, array: Array) -> None:
        """Count every element of an array of any shape; an empty one changes nothing.

        float16, float64 and integers are converted to the nearest float32; a float64 beyond float32 becomes infinite.
        The array is only read, and a contiguous one is not copied. Raises CalibrationError: an element is NaN or
        infinite; nothing of the array is counted then. Raises TypeError: the elements are not real numbers.
        """
        flat = np.ravel(array, order="K")  # a view, unless there are gaps
        if 0 < flat.size <= _BLOCK:
            self._count(flat)
            return
        fresh = Histogram()  # a late block may be refused
        for start in range(0, flat.size, _BLOCK):
            fresh._count(flat[start : start + _BLOCK])
        self.merge(fresh)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram, which is not changed."""
        self._grow_to(other.exponent)
        self._add_counts(
            _merge_bins(other.counts, self.exponent - other.exponent), other.values, other._low, other._high
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ``counts`` is base64 of zlib of 2,048 little-endian int64."""
        packed = zlib.compress(self.counts.astype("<i8").tobytes(), 6)  # level 9: 2 % smaller in 9 × the time
        return {
            "exponent": self.exponent,
            "low": shortest_float(self.low),
            "high": shortest_float(self.high),
            "values": self.values,
            "digest": self.digest,
            "counts": base64.b64encode(packed).decode("ascii"),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Histogram:
        """Return the histogram that :meth:`to_json` stored; raise CalibrationError for damaged content."""
        histogram = cls()
        try:
            unpack = zlib.decompressobj()
            data = unpack.decompress(base64.b64decode(content["counts"], validate=True), BINS * 8 + 1)
            if len(data) != BINS * 8 or not unpack.eof:
                raise ValueError(f"there are not {BINS} counts")
            histogram.counts = np.frombuffer(data, "<i8").astype(np.int64)
            histogram.exponent, histogram.values = int(content["exponent"]), int(content["values"])
            if histogram.values:
                histogram._low, histogram._high = _float32(content["low"]), _float32(content["high"])
            wrong = histogram._inconsistency() or (
                "" if content["digest"] == histogram.digest else "its checksum does not fit"
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error, zlib.error) as error:
            why, fix = f"{type(error).__name__}: {error}", "calibrate again"
            raise CalibrationError("a histogram is damaged", why=why, fix=fix) from error
        if wrong:
            raise CalibrationError("a histogram is damaged", why=wrong, fix="calibrate again")
        return histogram

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self._facts() == other._facts()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Histogram({self.values} values from {self.low:g} to {self.high:g})"

    def _facts(self) -> tuple[object, ...]:
        return self.exponent, self.values, self.low, self.high, self.counts.tobytes()

    def _count(self, block: Array) -> None:
        """Count up to ``_BLOCK`` contiguous values."""
        if block.dtype != np.float32:
            with np.errstate(over="ignore"):  # becomes infinite, which is refused
                block = block.astype(np.float32, casting="same_kind")
        low, high = float(np.minimum.reduce(block)) + 0.0, float(np.maximum.reduce(block)) + 0.0  # -0.0 + 0.0 is 0.0
        if not (math.isfinite(low) and math.isfinite(high)):  # NaN is kept by both min and max
            nan, infinite = int(np.isnan(block).sum()), int(np.isinf(block).sum())
            raise CalibrationError(
                "some values are not finite",
                why=f"{nan} NaN and {infinite} infinite among {block.size} values",
                fix="check the preprocessing (mean, std, color order); a float model that overflows has no ranges",
            )
        self._grow_to(_exponent(max(-low, high)))
        self._add_counts(_bin_counts(block, self.exponent), block.size, low, high)

    def _add_counts(self, counts: Counts, values: int, low: float, high: float) -> None:
        self.counts += counts
        self.values += values
        self._low, self._high = min(self._low, low), max(self._high, high)

    def _grow_to(self, exponent: int) -> None:
        """Double the range until it is at least 2**exponent."""
        if exponent > self.exponent:
            if self.values:
                self.counts = _merge_bins(self.counts, exponent - self.exponent)
            self.exponent = exponent

    def _inconsistency(self) -> str:
        """Return what is inconsistent in the histogram; empty where nothing is."""
        if self.counts.min() < 0 or int(self.counts.sum()) != self.values:
            return "its counts do not add up"
        if not -math.inf < self.low <= self.high < math.inf or self.exponent != _exponent(self.amax):
            return "its range does not fit its extremes"
        top = int(math.ldexp(self.amax, _LOG2_BINS - self.exponent))
        if self.values and (not self.counts[top] or self.counts[top + 1 :].any()):
            return "its counts do not fit its extremes"
        return ""


def shortest_float(value: float) -> float:
    """Return the number of fewest digits that parses to this float32."""
    brief = float(str(np.float32(value)))
    return brief if np.float32(brief) == np.float32(value) else value


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(float(value)))


class _Scratch(threading.local):
    """Scratch memory of one thread: a block's bins."""

    def __init__(self) -> None:
        self.bins = np.empty(_BLOCK, np.int16)


_scratch = _Scratch()


def _bin_counts(block: Array, exponent: int) -> Counts:
    """Return (2048,) int64 counts of a block whose magnitudes are all below 2**exponent.

    Scaling by a power of two is exact, and subnormal results belong in bin 0. The cast rounds towards zero, so the
    magnitude of the integer is the bin.
    """
    bins = _scratch.bins[: block.size]
    np.multiply(block, np.float32(2.0 ** (_LOG2_BINS - exponent)), out=bins, casting="unsafe")
    index = np.absolute(bins, out=bins).view(np.uint16)
    if block.size < _MANY:
        return _histogram(index, BINS).astype(np.int64)
    np.add(index, _OFFSETS[: block.size], out=index)
    banks = _histogram(index, 2 * _BANK).reshape(2, _BANK)[:, :BINS]
    total: Counts = (banks[0] + banks[1]).astype(np.int64)
    return total


def _histogram(index: npt.NDArray[np.uint16], bins: int) -> npt.NDArray[np.float32]:
    """Return (bins,) counts of each integer; no threads are started, and the GIL is released.

    The array is passed as one row, since OpenCV is far slower on a one-dimensional array, which it treats as a column.
    The range has as many numbers as there are bins, so that its scale is exactly 1.
    """
    counts = cv2.calcHist([index.reshape(1, -1)], [0], None, [bins], [0.0, float(bins)])
    return np.asarray(counts, np.float32).ravel()


def _exponent(amax: float) -> int:
    """Return the smallest exponent with amax < 2**exponent; a power of two needs one more than its own."""
    return max(MIN_EXPONENT, math.frexp(amax)[1]) if amax else MIN_EXPONENT


def _merge_bins(counts: Counts, doublings: int) -> Counts:
    """Return the counts of the same values over a range doubled this many times."""
    if not doublings:
        return counts
    merged = np.zeros(BINS, np.int64)
    kept = BINS >> min(doublings, _LOG2_BINS)
    merged[:kept] = counts.reshape(kept, -1).sum(axis=1)
    return merged
