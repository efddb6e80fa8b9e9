"""Conversion of records to messages: detections, classes, names of classes, and the state of the pipeline."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgert.runtime.health import status_line, unready_reasons
from edgert.runtime.records import Classification, Detections, label_of

_OK, _ERROR = 0, 2


def detections(found: Detections, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Detection2DArray.

    Boxes are in pixels of the image, oriented ones with their angle. A class is its label, or its number if the model
    has no labels; the id is the track number. Positions are in meters, in the camera's optical frame.
    """
    centers, sizes, angles = _geometry(found)
    classes, scores = _labels(found), found.scores.tolist()
    ids = [""] * len(found) if found.ids is None else [str(one) for one in found.ids.tolist()]
    rows = zip(centers, sizes, angles, classes, scores, ids, strict=True)
    boxes = [
        {
            **header,
            "results": [{"hypothesis.class_id": name, "hypothesis.score": score}],
            "bbox.center.position.x": x,
            "bbox.center.position.y": y,
            "bbox.center.theta": angle,
            "bbox.size_x": width,
            "bbox.size_y": height,
            "id": number,
        }
        for (x, y), (width, height), angle, name, score, number in rows
    ]
    if found.positions is not None:
        for box, (right, down, forward) in zip(boxes, found.positions.tolist(), strict=True):
            place = {"x": right, "y": down, "z": forward}
            box["results"][0] |= {f"pose.pose.position.{axis}": value for axis, value in place.items()}
    return {**header, "detections": boxes}


def _geometry(found: Detections) -> tuple[list[list[float]], list[list[float]], list[float]]:
    if found.corners is None:
        boxes = found.boxes.astype(np.float64)
        low, high = boxes[:, :2], boxes[:, 2:]
        return ((low + high) / 2).tolist(), (high - low).tolist(), [0.0] * len(found)
    corners = found.corners.astype(np.float64)
    along, across = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 1]
    sizes = np.stack([np.hypot(*along.T), np.hypot(*across.T)], axis=1)
    return corners.mean(axis=1).tolist(), sizes.tolist(), np.arctan2(along[:, 1], along[:, 0]).tolist()


def classification(found: Classification, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Classification: the best classes, best first."""
    pairs = zip(_labels(found), found.scores.tolist(), strict=True)
    return {**header, "results": [{"class_id": name, "score": score} for name, score in pairs]}


def _labels(found: Detections | Classification) -> list[str]:
    return [label_of(found.labels, one) for one in found.classes.tolist()]


def vision_info(labels: Sequence[str], pipeline: str, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a VisionInfo: the class names as a JSON array, in the order of the model."""
    names = json.dumps(list(labels), ensure_ascii=False)
    return {**header, "method": pipeline, "database_location": names, "database_version": 1}


def diagnostics(stats: Mapping[str, Any], header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a DiagnosticArray: the pipeline, and each of its sources.

    Args:
        stats: state of the run, as :meth:`edgert.Pipeline.state` returns it.
        header: header of the message.
    """
    name, missing = f"edgert: {stats.get('name', 'pipeline')}", unready_reasons(stats)
    recent = stats.get("recent") or {}
    latency = recent.get("latency_ms") or {}
    values = {
        "fps": recent.get("fps"),
        "latency p99 ms": latency.get("p99"),
        "dropped in the last minute": sum((recent.get("dropped") or {}).values()),
        "dropped": stats.get("dropped"),
    }
    rows = [_status(_ERROR if missing else _OK, name, status_line(stats), values)]
    for stage, of in stats.get("stages", {}).items():
        if (source := of.get("source")) is not None:
            away = source.get("up") is False
            about = {
                "frames": of.get("results_out"),
                **{key: source.get(key) for key in ("lost", "skipped", "reconnects")},
            }
            message = source.get("reason") or ("no frame yet" if away else "running")
            rows.append(_status(_ERROR if away else _OK, f"{name}: {stage}", message, about))
    return {**header, "status": rows}


def _status(level: int, name: str, message: str, values: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [{"key": key, "value": f"{value:.6g}" if isinstance(value, float) else str(value)}
             for key, value in values.items() if value is not None]  # fmt: skip
    return {"level": level, "name": name, "message": message, "hardware_id": "", "values": pairs}
