"""What an interrupted calibration has counted, in a file from which it goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.artifact.atomic import replace_text
from edgert.errors import CalibrationError
from edgert.quantize.histogram import Histogram
from edgert.quantize.resume import foreign, read_unfinished
from edgert.quantize.shard import Feed

log = logging.getLogger("edgert.quantize")

_FORMAT, _HOLDS = "edgert calibration in progress", "calibration"
_VERSION = 1
_SAVE_S = 10.0  # between two writes, each of which takes a fraction of a second

Histograms = Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted; replaced as a whole, so that an interrupt at any instant leaves one that is right.

    Attributes:
        done: pictures, all of those before number ``done``.
        counts: counted tensor → its histogram over them.
        before: the histograms when the ranges were last looked at, if they were.
        settled: whether the ranges had settled by then.
    """

    done: int = 0
    counts: Histograms = field(default_factory=dict)
    before: Histograms | None = None
    settled: bool = False


def fingerprint(model: str, counted: Sequence[str], feed: Feed, settings: Mapping[str, object]) -> str:
    """A digest of what counts depend on: the model (its digest), the counted tensors, the pictures, the settings.

    Of the pictures it takes all names, and the arrays of the first, the last and the one in the middle: that shows
    another preprocessing.
    """
    digest = hashlib.sha256()
    names = [feed.name(index) for index in range(len(feed))]
    facts = [model, list(counted), sorted(settings.items()), names]
    digest.update(json.dumps(facts).encode())
    for index in sorted({0, len(feed) // 2, len(feed) - 1}):
        for name, array in sorted(feed.feeds(index).items()):
            digest.update(f"{name} {array.dtype.name} {array.shape} ".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


class Journal:
    """The tally of one calibration and its file. A context: when it is left with an error the file is brought up to
    date, otherwise removed.

    Args:
        path: the file; None keeps the tally in memory only.
        key: what the counts depend on, from :func:`fingerprint`.

    Raises:
        CalibrationError: the file is another kind of file, damaged, or cannot be read.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self.tally = Tally() if path is None else load_tally(path, key)
        self._saved_s = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._path is None:
            return
        if kind is None:
            self._path.unlink(missing_ok=True)
        else:
            save_tally(self.tally, self._path, self._key)

    def replace(self, tally: Tally) -> None:
        """Takes a new tally, and writes the file when that is due. Raises ArtifactError when it cannot be written."""
        self.tally = tally
        if self._path is not None and time.monotonic() - self._saved_s > _SAVE_S:
            save_tally(tally, self._path, self._key)
            self._saved_s = time.monotonic()


def save_tally(tally: Tally, path: Path, key: str) -> None:
    """Writes the file; a reader finds the old one or the new one. Raises ArtifactError when it cannot be written."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "key": key,
        "done": tally.done,
        "counts": _to_json(tally.counts),
        "before": None if tally.before is None else _to_json(tally.before),
        "settled": tally.settled,
    }
    replace_text(path, json.dumps(content))


def load_tally(path: Path, key: str) -> Tally:
    """What the file holds; an empty tally when there is none, or when it belongs to another model, other pictures or
    other settings, which is logged as a warning.

    Raises:
        CalibrationError: it is another kind of file, damaged, or cannot be read.
    """
    if not path.exists():
        return Tally()
    content = read_unfinished(path, _FORMAT, _HOLDS)
    if content.get("version") != _VERSION or content.get("key") != key:
        log.warning("%s belongs to another model, other pictures or other settings; started over", path)
        return Tally()
    try:
        before = None if content["before"] is None else _from_json(content["before"])
        return Tally(int(content["done"]), _from_json(content["counts"]), before, bool(content["settled"]))
    except (KeyError, TypeError, ValueError, AttributeError, CalibrationError) as error:
        raise foreign(path, _HOLDS, str(error)) from error


def _to_json(histograms: Histograms) -> dict[str, Any]:
    return {name: histogram.to_json() for name, histogram in histograms.items()}


def _from_json(content: Mapping[str, Any]) -> Histograms:
    return {name: Histogram.from_json(value) for name, value in content.items()}
