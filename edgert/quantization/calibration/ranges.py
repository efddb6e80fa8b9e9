"""Range table, from which the scales of every backend are computed, and state files of interrupted jobs."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgert._version import __version__
from edgert.errors import CalibrationError, cause, nearest
from edgert.files import replace_text
from edgert.graph import Model
from edgert.quantization.calibration.threshold import check_method, threshold
from edgert.quantization.calibration.value_histogram import Histogram, shortest_float

FORMAT, SCHEMA = "edgert ranges", 1
_ABOUT = "amax is where a tensor is clipped; it follows from method and histogram, so editing it changes nothing"
_AGAIN = "calibrate again"


@dataclass(frozen=True)
class RangeTable:
    """Histograms of every tensor over the calibration images, and the methods that choose thresholds from them.

    Attributes:
        histograms: values of each tensor by name, not to be changed.
        chosen: method by tensor, where it differs from ``method``.
        available: number of images there were, more than ``images`` after an early stop; None if unknown.

    Raises:
        CalibrationError: an unknown method, or a choice for a tensor that is not in the table.
    """

    model: str
    images: int
    method: str
    histograms: Mapping[str, Histogram]
    chosen: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    available: int | None = None
    version: str = __version__
    _known: dict[tuple[str, ...], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for method in {self.method, *self.chosen.values()}:
            check_method(method)
        for name in self.chosen:
            self._histogram(name)

    @property
    def zero(self) -> tuple[str, ...]:
        """Tensors that were zero in all images, sorted by name; their scale is not a measurement."""
        return tuple(sorted(name for name, histogram in self.histograms.items() if histogram.is_zero))

    def amax(self, names: Iterable[str] | str) -> float:
        """Return the threshold of a tensor, or of tensors that share a scale; it is computed once and cached.

        The threshold of a group is chosen from all its values. Where its tensors have different methods, it is the
        largest that one of these methods gives, so that no tensor loses values that its own method keeps. Raises
        CalibrationError: no names, or a tensor is not in the table or never had an element.
        """
        group = (names,) if isinstance(names, str) else tuple(sorted(set(names)))
        if group in self._known:
            return self._known[group]
        if not group:
            raise CalibrationError("cannot choose a threshold without tensors", why="the group is empty")
        histograms = [self._histogram(name) for name in group]
        whole = histograms[0] if len(group) == 1 else Histogram.merged(histograms)
        if not whole.values:
            raise CalibrationError(
                f"tensor {group[0]!r} has no range", why="it had no elements in any image", fix="leave it in float32"
            )
        methods = {self.chosen.get(name, self.method) for name in group}
        self._known[group] = max(threshold(whole, method) for method in methods)
        return self._known[group]

    def span(self, names: Iterable[str] | str) -> tuple[float, float]:
        """Return the smallest and the largest value of a tensor, or of all tensors that share a scale.

        Raises CalibrationError: a tensor was not measured.
        """
        found = [self._histogram(name) for name in ((names,) if isinstance(names, str) else names)]
        return min(one.low for one in found), max(one.high for one in found)

    def with_method(self, method: str) -> RangeTable:
        """Return the same values with one method for all tensors; raise CalibrationError for an unknown method."""
        return replace(self, method=method, chosen={})

    def with_chosen(self, chosen: Mapping[str, str]) -> RangeTable:
        """Return the same values with these methods where they differ from the table's; earlier choices are dropped."""
        return replace(self, chosen={name: method for name, method in chosen.items() if method != self.method})

    def _histogram(self, name: str) -> Histogram:
        if name not in self.histograms:
            raise CalibrationError(
                f"tensor {name!r} has no range{nearest(name, self.histograms)}",
                why=f"the table has {len(self.histograms)} tensors of model {self.model[:12]}",
                fix=f"{_AGAIN}, with the model as it is quantized",
            )
        return self.histograms[name]


def save_table(table: RangeTable, path: str | Path) -> None:
    """Write a range file atomically; equal tables give equal bytes, and missing folders are created.

    The file has one readable line per tensor, then one line per histogram for :func:`load_table`. Raises ArtifactError:
    the file cannot be written.
    """
    head = {
        "format": FORMAT,
        "schema": SCHEMA,
        "about": _ABOUT,
        "edgert": table.version,
        "model": table.model,
        "images": table.images,
        "available": table.available,
        "method": table.method,
        "warnings": list(table.warnings),
    }
    stored = {name: table.histograms[name].to_json() for name in sorted(table.histograms)}
    tensors = {}
    counts = {name: content.pop("counts") for name, content in stored.items()}
    for name, content in stored.items():
        own = {"method": table.chosen[name]} if name in table.chosen else {}
        amax = shortest_float(table.amax(name)) if table.histograms[name].values else None
        tensors[name] = {"amax": amax, **own, **content}
    lines = [f"{_dump(key)}: {_dump(value)}" for key, value in head.items()]
    for key, rows in (("tensors", tensors), ("counts", counts)):
        inner = ",\n".join(f"  {_dump(name)}: {_dump(row)}" for name, row in rows.items())
        lines.append(f"{_dump(key)}: {{\n{inner}\n}}")
    replace_text(Path(path), "{\n" + ",\n".join(lines) + "\n}\n")


def load_table(path: str | Path, model: Model | None = None) -> RangeTable:
    """Return the table that :func:`save_table` wrote.

    Raises CalibrationError: the file is missing, unreadable, damaged, not a range table, of a later edgert, or of
    another model.
    """
    file, why = Path(path), f'its "format" is not "{FORMAT}"'
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise CalibrationError(
            f"cannot read ranges from {str(file)!r}", why=cause(error), fix="calibrate first"
        ) from error
    except (ValueError, RecursionError) as error:
        content, why = None, f"it is not JSON: {error}"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        what, fix = f"{str(file)!r} is not a range table", "name the ranges.json that calibration wrote"
        raise CalibrationError(what, why=why, fix=fix)
    if content.get("schema") != SCHEMA:
        raise CalibrationError(
            f"cannot read ranges of schema {content.get('schema')!r}",
            why=f"edgert {content.get('edgert')} wrote them; edgert {__version__} reads schema {SCHEMA}",
            where=str(file),
            fix=f"update edgert, or {_AGAIN} with this one",
        )
    try:
        table = _table(content)
    except CalibrationError as error:
        raise error.at(str(file)) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged_error(f"{type(error).__name__}: {error}").at(str(file)) from error
    if model is not None and model.digest != table.model:
        raise CalibrationError(
            "these ranges belong to another model",
            why=f"they were measured on {table.model[:16]}, this model is {model.digest[:16]} once prepared",
            where=str(file),
            fix=f"{_AGAIN} with this model, or name the file that was made from it",
        )
    return table


def _dump(value: object) -> str:
    return json.dumps(value, allow_nan=False)  # in ASCII, for names that are not valid Unicode


def _table(content: Mapping[str, Any]) -> RangeTable:
    tensors, counts = content["tensors"], content["counts"]
    if odd := tensors.keys() ^ counts.keys():
        raise _damaged_error(f"tensor {min(odd)!r} has only one of its two entries")
    histograms = {}
    for name, entry in tensors.items():
        try:
            histograms[name] = Histogram.from_json({**entry, "counts": counts[name]})
        except CalibrationError as error:
            raise _damaged_error(f"the entry of tensor {name!r}: {error.why}") from error
    return RangeTable(
        model=_require_type(str, content["model"]),
        images=_require_type(int, content["images"]),
        method=content["method"],
        histograms=histograms,
        chosen={name: entry["method"] for name, entry in tensors.items() if "method" in entry},
        warnings=tuple(_require_type(str, warning) for warning in _require_type(list, content["warnings"])),
        available=None if content["available"] is None else _require_type(int, content["available"]),
        version=_require_type(str, content["edgert"]),
    )


def _require_type(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def _damaged_error(why: str) -> CalibrationError:
    return CalibrationError("the range table is damaged", why=why, fix=_AGAIN)


log = logging.getLogger("edgert.quantize")

VERSION = 1
"""Version of state files; those of another version are started over."""


def read_state(path: Path | None, kind: str, key: str) -> Mapping[str, Any]:
    """Return the content of a state file; empty where there is none, or one of another kind or key, which is logged."""
    if path is None or not path.exists():
        return {}
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.items() >= {"kind": kind, "version": VERSION, "key": key}.items():
            return content
    log.warning("%s belongs to another model, other images or other settings; started over", path)
    return {}


def write_state(path: Path, kind: str, key: str, **content: object) -> None:
    """Write a state file for :func:`read_state`, atomically. Raises ArtifactError."""
    facts = {"kind": kind, "version": VERSION, "key": key, **content}
    replace_text(path, json.dumps(facts, default=Histogram.to_json))


Units = frozenset[str]


class Memo:
    """Cached function of a set of units, whose values survive the process in a file.

    The file is written after every evaluation, so that the program may end at any time. A file of another key is
    started over. Without a path, values stay in memory. The key is a digest of all else that they depend on.
    """

    def __init__(self, function: Callable[[Units], float], path: Path | None, kind: str, key: str) -> None:
        self._function, self._path, self._kind, self._key = function, path, kind, key
        rows = read_state(path, kind, key).get("values", ())
        self.values: dict[Units, float] = {frozenset(names): float(value) for names, value in rows}

    def __call__(self, kept: Units) -> float:
        """Return the value of a set, measured now unless it is known.

        Raises CalibrationError: the value is not a finite number. Raises ArtifactError: the file cannot be written.
        """
        if kept not in self.values:
            value = float(self._function(kept))
            if not math.isfinite(value):
                text = f"{len(kept)} units" if len(kept) > 1 else next(map(repr, kept), "nothing")
                raise CalibrationError(
                    f"the {self._kind} with {text} in higher precision is {value}",
                    why="it is compared with others, so it must be a finite number",
                    fix="look for NaN or Inf in the model's outputs, or for labels that fit no image",
                )
            self.values[kept] = value
            if self._path is not None:
                rows = sorted((sorted(names), value) for names, value in self.values.items())
                write_state(self._path, self._kind, self._key, values=rows)
        return self.values[kept]
