"""What an interrupted calibration has counted, in a file from which it goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgert.errors import CalibrationError, cause
from edgert.files import replace_text
from edgert.quantization.calibration.shards import Feed
from edgert.quantization.calibration.value_histogram import Histogram

# Files from which an interrupted job goes on.


def read_unfinished(path: Path, kind: str, holds: str) -> Mapping[str, Any]:
    """The content of such a file.

    Args:
        kind: its value of ``format``.
        holds: what it should hold, for the error: ``"measurements"``.

    Raises:
        CalibrationError: it is another kind of file, damaged, or cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"cannot read {str(path)!r}", why=cause(error), fix="name another file") from error
    except ValueError as error:
        raise wrong_file(path, holds, str(error)) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise wrong_file(path, holds, f"its format is not {kind!r}")
    return content


def wrong_file(path: Path, holds: str, why: str) -> CalibrationError:
    """The error for a file that holds something else."""
    return CalibrationError(
        f"{str(path)!r} holds no {holds} to go on with", why=why, fix="remove it, or name another file"
    )


log = logging.getLogger("edgert.quantize")

_FORMAT, _HOLDS = "edgert calibration in progress", "calibration"
_VERSION = 1
_SAVE_S = 10.0  # between two writes, each of which takes a fraction of a second

Histograms = Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted; replaced as a whole, so that an interrupt at any instant leaves one that is right.

    Attributes:
        done: images, all of those before number ``done``.
        counts: counted tensor → its histogram over them.
        before: the histograms when the ranges were last looked at, if they were.
        settled: whether the ranges had settled by then.
    """

    done: int = 0
    counts: Histograms = field(default_factory=dict)
    before: Histograms | None = None
    settled: bool = False


def fingerprint(model: str, counted: Sequence[str], feed: Feed, settings: Mapping[str, object]) -> str:
    """A digest of what counts depend on: the model (its digest), the counted tensors, the images, the settings.

    Of the images it takes all names, and the arrays of the first, the last and the one in the middle: that shows
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
    """What the file holds; an empty tally when there is none, or when it belongs to another model, other images or
    other settings, which is logged as a warning.

    Raises:
        CalibrationError: it is another kind of file, damaged, or cannot be read.
    """
    if not path.exists():
        return Tally()
    content = read_unfinished(path, _FORMAT, _HOLDS)
    if content.get("version") != _VERSION or content.get("key") != key:
        log.warning("%s belongs to another model, other images or other settings; started over", path)
        return Tally()
    try:
        before = None if content["before"] is None else _from_json(content["before"])
        return Tally(int(content["done"]), _from_json(content["counts"]), before, bool(content["settled"]))
    except (KeyError, TypeError, ValueError, AttributeError, CalibrationError) as error:
        raise wrong_file(path, _HOLDS, str(error)) from error


def _to_json(histograms: Histograms) -> dict[str, Any]:
    return {name: histogram.to_json() for name, histogram in histograms.items()}


def _from_json(content: Mapping[str, Any]) -> Histograms:
    return {name: Histogram.from_json(value) for name, value in content.items()}


# Measured values of sets of units, saved in a file: what an interrupted search has measured is not measured again.

Units = frozenset[str]

_MEMO_FORMAT, _MEMO_HOLDS = "edgert measurements", "measurements"


class Memo:
    """A function of a set of units that is evaluated once per set, and never again while its file is there.

    The file is rewritten atomically after every evaluation, so that the program may end at any moment. It belongs to
    one ``kind`` of measurement and one ``key``; with another key it is started over, which :attr:`note` reports.

    Args:
        function: what is measured. Whatever it raises is passed on, KeyboardInterrupt among the rest; the file then
            holds everything measured before.
        path: the file; None keeps the values in memory only.
        kind: what the values are, ``"accuracy"``.
        key: digest of everything else the values depend on: model, data, settings.

    Raises:
        CalibrationError: the file is something else, or cannot be read.
    """

    def __init__(self, function: Callable[[Units], float], path: Path | None, kind: str, key: str) -> None:
        self._function, self._path, self._kind, self._key = function, path, kind, key
        self.values: dict[Units, float] = {}
        self.note = ""
        if path is not None and path.exists():
            self._take(read_unfinished(path, _MEMO_FORMAT, _MEMO_HOLDS), path)

    def __call__(self, kept: Units) -> float:
        """The value of a set, measured now unless it is known.

        Raises:
            CalibrationError: the value is not a finite number.
            ArtifactError: the file cannot be written.
        """
        if kept not in self.values:
            value = float(self._function(kept))
            if not math.isfinite(value):
                raise CalibrationError(
                    f"the {self._kind} with {describe(kept)} in higher precision is {value}",
                    why="it is compared with others, so it must be a finite number",
                    fix="look for NaN or Inf in the model's outputs, or for labels that fit no image",
                )
            self.values[kept] = value
            self._save()
        return self.values[kept]

    def _take(self, content: Mapping[str, Any], path: Path) -> None:
        if content.get("kind") != self._kind:
            raise wrong_file(path, _MEMO_HOLDS, f"it holds {content.get('kind')!r}, not {self._kind!r}")
        if content.get("version") != _VERSION:
            self.note = f"{path} was written by another version of edgert; started over"
        elif content.get("key") != self._key:
            self.note = f"{path} belongs to another model, other data or other settings; started over"
        else:
            self.values = {frozenset(names): float(value) for names, value in content["values"]}
        if self.note:
            log.warning("%s", self.note)

    def _save(self) -> None:
        if self._path is None:
            return
        rows = sorted((sorted(kept), value) for kept, value in self.values.items())
        content = {"format": _MEMO_FORMAT, "version": _VERSION, "kind": self._kind, "key": self._key, "values": rows}
        replace_text(self._path, json.dumps(content, indent=0))


def describe(kept: Collection[str]) -> str:
    """``"nothing"``, the name of one unit, or how many there are."""
    if len(kept) > 1:
        return f"{len(kept)} units"
    return next((repr(name) for name in kept), "nothing")
