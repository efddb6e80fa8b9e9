"""Results as plain data, ready for JSON: version 1 of the records that docs/results.md describes."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from edgert.clock import REAL, Clock, rfc3339, time_of_day_ns
from edgert.errors import StageError, shown
from edgert.runtime import records
from edgert.runtime.records import Classification, Crops, Detections, Embedding, Keypoints, Result, Segmentation

_BOX_DECIMALS = 2  # hundredths of a pixel
_SCORE_DECIMALS = 4
_METER_DECIMALS = 3
_VECTOR_DECIMALS = 6
_OBJECT_SCALES = 10.0 ** np.array([_BOX_DECIMALS] * 4 + [_SCORE_DECIMALS])
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_MAX_DEPTH = 32  # deeper than any sensible data; stops at a structure that contains itself

Array = npt.NDArray[Any]


def plain_result(result: Result, clock: Clock = REAL) -> dict[str, Any]:
    """Return one result as plain data; ``clock`` is that of its times.

    Raises:
        StageError: a stage returned an object without a plain form; the error names the stage and the type.
    """
    frame, extra, outputs = result.frame, result.frame.extra, {}
    for stage, record in result.outputs.items():
        form: Callable[[Any, int], Any] = _FORMS.get(type(record), _plain)
        try:
            outputs[stage] = form(record, 0)
        except StageError as error:
            raise error.at(f"stages.{stage}") from error.__cause__
    time_ns, sent_ns = time_of_day_ns(frame.timestamp_ns, clock), extra.sender_ns
    return {
        "stream": frame.stream,
        "frame": frame.index,
        "time": rfc3339(time_ns),
        "time_ns": time_ns,
        "timestamp_ns": frame.timestamp_ns,
        "media_s": round(frame.media_ns / 1e9, 6),
        **({"file": shown(extra.file)} if extra.file else {}),
        **({"sender_time": rfc3339(sent_ns), "sender_time_ns": sent_ns} if sent_ns is not None else {}),
        **({"models": dict(result.models)} if result.models else {}),
        **({"trace": extra.delivery.trace, "object": extra.delivery.about} if extra.delivery is not None else {}),
        "outputs": outputs,
    }


def encoded(data: object) -> bytes:
    """Return plain data as one line of JSON in UTF-8."""
    try:
        return orjson.dumps(data)
    except TypeError:  # an integer of more than 64 bits, or a lone surrogate, which UTF-8 lacks:
        return _ENCODER.encode(data).encode("utf-8", "backslashreplace")  # \udcXX is just how JSON escapes it


def plain(record: object) -> Any:
    """Return a record or a user's object as dicts, lists, strings, finite numbers, booleans and None.

    Raises:
        StageError: the object has no plain form; the error names its type.
    """
    return _plain(record, 0)


def _plain(value: object, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise StageError("data is nested too deeply to write", why="it may contain itself")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)  # also turns an IntEnum into a plain number
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, bool, int, np.integer)):
                what = f"cannot write {type(key).__name__} as the key of a JSON object"
                raise StageError(what, fix="use strings as keys")
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return _plain_object(value, depth)


@lru_cache(maxsize=256)
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the field names of a dataclass, cached: each call of ``fields`` leaves a tuple in Python's free lists."""
    return tuple([field.name for field in dataclasses.fields(kind)])


@singledispatch
def _plain_object(value: object, depth: int) -> Any:
    """Return the plain form of a value that is neither a number nor a container, by its type."""
    to_json = getattr(value, "to_json", None)
    if callable(to_json):
        return _plain(to_json(), depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name), depth + 1) for name in _field_names(type(value))}
    kind = type(value)
    raise StageError(
        f"cannot write {kind.__module__}.{kind.__qualname__} as JSON",
        fix="return plain data, a NumPy array, a dataclass, or give the class a to_json() method",
    )


@_plain_object.register
def _array(value: np.ndarray, depth: int) -> Any:
    if value.dtype.kind in "biu":
        return value.tolist()
    return _rounded(value) if value.dtype.kind == "f" else _plain(value.tolist(), depth + 1)


@_plain_object.register
def _detections(record: Detections, depth: int) -> dict[str, Any]:
    objects = _objects(record)
    if record.ids is not None:
        for entry, number in zip(objects, record.ids.tolist(), strict=True):
            entry["id"] = number
    if record.corners is not None:
        for entry, corners in zip(objects, _rounded(record.corners, _BOX_DECIMALS), strict=True):
            entry["corners"] = corners
    if record.masks is not None:
        for entry, mask in zip(objects, record.masks, strict=True):
            entry["mask"] = _run_lengths(mask)
    if record.positions is not None:
        for entry, position in zip(objects, _rounded(record.positions, _METER_DECIMALS), strict=True):
            entry["position"] = position
    named: dict[str, Any] = {"type": "keypoints" if isinstance(record, Keypoints) else "detections"}
    if record.points is not None:
        points = np.dstack([record.points[..., :2].round(_BOX_DECIMALS), record.points[..., 2:]])
        for entry, each in zip(objects, _rounded(points, _SCORE_DECIMALS), strict=True):
            entry["points"] = each
        named["names"] = list(record.names)
    if record.predicted:
        named["predicted"] = True
    return {**named, "objects": objects}


@_plain_object.register
def _classification(record: Classification, depth: int) -> dict[str, Any]:
    return {"type": "classification", "classes": _classes(record)}


@_plain_object.register
def _segmentation(record: Segmentation, depth: int) -> dict[str, Any]:
    flat = record.mask.ravel()
    counts = np.bincount(flat, minlength=1)
    present = np.flatnonzero(counts)
    shares = _rounded(counts[present] / max(flat.size, 1), _SCORE_DECIMALS)
    areas = [
        {**_label_entry(record.labels, number), "class": number, "share": share}
        for number, share in zip(present.tolist(), shares, strict=True)
    ]
    return {"type": "segmentation", "areas": areas, **_run_lengths(record)}


def _run_lengths(record: Segmentation) -> dict[str, Any]:
    """Return a mask in run-length encoding, row by row."""
    flat = record.mask.ravel()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]])) if flat.size else np.zeros(0, np.int64)
    return {
        **_region_and_size(record.region, record.mask),
        "values": flat[starts].tolist(),
        "lengths": np.diff(starts, append=flat.size).tolist(),
    }


@_plain_object.register
def _embedding(record: Embedding, depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {"type": "embedding", "vector": _rounded(record.vector, _VECTOR_DECIMALS)}
    if record.similarity is not None:
        data |= {"name": record.name or None, "similarity": _plain(round(record.similarity, _SCORE_DECIMALS), 0)}
    return data


@_plain_object.register
def _attributes(record: records.Attributes, depth: int) -> dict[str, Any]:
    return {"type": "attributes", "heads": _plain(record.heads, depth + 1)}


@_plain_object.register
def _text(record: records.Text, depth: int) -> dict[str, Any]:
    return {"type": "text", "text": record.text, "score": _plain(round(record.score, _SCORE_DECIMALS), 0)}


@_plain_object.register
def _depth(record: records.DepthMap, depth: int) -> dict[str, Any]:
    known = record.depth[np.isfinite(record.depth)]
    least, middle, greatest = (float(one(known)) if known.size else None for one in (np.min, np.median, np.max))
    found = {"least": least, "median": middle, "greatest": greatest}
    return {"type": "depth", "unit": record.unit, **_region_and_size(record.region, record.depth), **found}


@_plain_object.register
def _image(record: records.OutputImage, depth: int) -> dict[str, Any]:
    return {"type": "image", **_region_and_size(record.region, record.pixels)}


@_plain_object.register
def _anomaly(record: records.AnomalyMap, depth: int) -> dict[str, Any]:
    (x1, y1, x2, y2), (height, width) = record.region, record.scores.shape
    row, column = divmod(int(record.scores.argmax()), width)
    peak = [x1 + (column + 0.5) * (x2 - x1) / width, y1 + (row + 0.5) * (y2 - y1) / height]
    numbers = {"score": record.score, "threshold": record.threshold, "is_anomalous": record.is_anomalous}
    at = {"peak": _rounded(np.array(peak), _BOX_DECIMALS)}
    return {"type": "anomaly", **_plain(numbers, depth), **_region_and_size(record.region, record.scores), **at}


def _region_and_size(region: tuple[float, float, float, float], map_: Array) -> dict[str, Any]:
    """Return the region that a map covers, and its width and height."""
    return {"region": _rounded(np.asarray(region), _BOX_DECIMALS), "size": [map_.shape[1], map_.shape[0]]}


@_plain_object.register
def _crops(record: Crops, depth: int) -> dict[str, Any]:
    pairs = zip(record.rows.tolist(), record.records, strict=True)
    items = [{"row": row, "record": _plain(inner, depth + 1)} for row, inner in pairs]
    return {"type": "crops", "parent": record.parent, "items": items}


def _objects(record: Detections) -> list[dict[str, Any]]:
    """Return class, score and box of each object. Numbers are rounded as one array, which is faster."""
    numbers = np.empty((len(record), 5))
    numbers[:, :4], numbers[:, 4] = record.boxes, record.scores
    numbers *= _OBJECT_SCALES
    np.rint(numbers, out=numbers)
    numbers /= _OBJECT_SCALES
    labels, classes = record.labels, record.classes.tolist()
    rows = list(zip(classes, _nested_lists(numbers), strict=True))
    if rows and min(classes) >= 0 and max(classes) < len(labels):
        return [{"label": labels[one], "class": one, "score": row.pop(), "box": row} for one, row in rows]
    return [{**_label_entry(labels, one), "class": one, "score": row.pop(), "box": row} for one, row in rows]


def _classes(record: Classification) -> list[dict[str, Any]]:
    rows = zip(record.classes.tolist(), _rounded(record.scores, _SCORE_DECIMALS), strict=True)
    return [{**_label_entry(record.labels, number), "class": number, "score": score} for number, score in rows]


def _label_entry(labels: tuple[str, ...], number: int) -> dict[str, str]:
    return {"label": labels[number]} if 0 <= number < len(labels) else {}


def _rounded(array: Array, decimals: int | None = None) -> Any:
    """Return nested lists of floats, rounded in double precision: 0.1 is not written as 0.10000000149."""
    values = array.astype(np.float64)
    if decimals is not None:
        values = values.round(decimals)
    return _nested_lists(values)


def _nested_lists(values: npt.NDArray[np.float64]) -> Any:
    """Return nested lists of floats, with None for values that are not finite."""
    finite = np.isfinite(values)
    if np.logical_and.reduce(finite, axis=None):  # finite.all() with less overhead
        return values.tolist()
    boxed = values.astype(object)
    boxed[~finite] = None
    return boxed.tolist()


_FORMS: Mapping[type, Callable[[Any, int], Any]] = _plain_object.registry
"""Conversion functions by exact class, looked up first because ``singledispatch`` takes longer than a conversion."""
