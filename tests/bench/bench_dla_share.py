"""How much of real networks a DLA takes before and after the rewrites: nodes, multiply-adds, segments.

    python tests/bench/bench_dla_share.py [--json FILE]

Asked are the rules for Orin, INT8, TensorRT 10.3. Every figure is the share of the multiply-adds that surely runs on
the DLA, in percent, after all rewrites; what it was before, nodes and segments are beside it, and the error: the
largest absolute difference of any output to the original's on noise, by ONNX Runtime. A segment is a loadable, of which
a core holds 16. Bars: all the work of ResNet-50 (random weights), the demo's detector, YOLOX-nano and NanoDet, in one
segment. Then segments of YOLOv8 and YOLO11 (random weights), for TensorRT 10.3 and for typed networks, of 11.4.1: one
for backbone and neck; two with YOLO11, whose attention stands between them, on the GPU. The last figures are the time
of YOLOX-nano on ONNX Runtime, one thread, with its Focus layer as it was over that with Focus as a convolution,
alternately, median of ratios; and with all the rewrites. EDGERT_BENCH_MODELS and EDGERT_BENCH_ROUNDS try it quickly.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import report
from zoo import ROOT, chosen, model_path, rounds

sys.path.insert(0, str(ROOT))

from dla import Target
from edgert.benchmark.measure import Figure
from edgert.graph import Model, inputs, load, read, to_bytes
from edgert.graph.dla_rewrites import fit_model, prove, ready
from edgert.placement.dla_share import Survey, survey
from tests.helpers import yolo_models
from tests.helpers.resnet import resnet50

TARGET = Target(generation=2, tensorrt="10.3", precision="int8")
DEMO = Path(ROOT) / "pipelines" / "assets" / "parts.onnx"
MODELS = (
    "resnet50",
    "parts",
    "yolox_nano_416",
    "nanodet_m_320",
    "fastestdet",
    "squeezenet_fp32",
    "mobilenet_v1_025_224",
    "ultraface_rfb_320",
    "deeplab_v3_mnv2_05",
)
WHOLE = MODELS[:4]
"""These must have all their work on the DLA, in one segment."""
YOLO = {"yolov8n": 1, "yolov8s": 1, "yolo11n": 2}
"""Segments that backbone and neck come to."""
FOCUS = ("space-to-depth", "merge-rearrangement")
ROUNDS, WARM_UP = 60, 5


def original(name: str) -> Model:
    """The model as it comes, static and clean."""
    if name == "resnet50":
        return ready(resnet50())
    return ready(load(DEMO if name == "parts" else model_path(name)))


def session(model: Model) -> onnxruntime.InferenceSession:
    """On one thread, with the runtime's own optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])


def run(model: Model, feed: Mapping[str, Any]) -> list[Any]:
    """All outputs."""
    found: list[Any] = session(model).run(None, dict(feed))
    return found


def noise(model: Model) -> dict[str, Any]:
    """One input between -1 and 1."""
    rng = np.random.default_rng(0)
    return {spec.name: rng.uniform(-1, 1, spec.shape).astype(spec.dtype) for spec in inputs(model)}  # type: ignore[arg-type]


def told(found: Survey, when: str) -> dict[str, Any]:
    """A survey in numbers."""
    return {
        f"nodes_{when}": found.summary.nodes,
        f"nodes_dla_{when}": found.summary.yes,
        f"nodes_verify_{when}": found.summary.verify,
        f"macs_percent_{when}": 100 * found.summary.macs_yes,
        f"segments_{when}": len(found.regions),
        f"working_segments_{when}": sum(1 for region in found.regions if region.macs),
    }


def share(name: str) -> Figure:
    """One network."""
    before = original(name)
    after, changes = fit_model(before)
    first, second = (survey(read(model), TARGET) for model in (before, after))
    proof = prove(before, after, [noise(before)], run)
    detail = {**told(first, "before"), **told(second, "after"), "gmacs_before": sum(first.macs) / 1e9,
              "gmacs_after": sum(second.macs) / 1e9, "changes": len(changes), "max_error": proof.error,
              "max_output": proof.largest, "rewrites": sorted({change.rule for change in changes})}  # fmt: skip
    whole = name in WHOLE and detail["working_segments_after"] == 1
    value = 100 * second.summary.macs_yes if whole or name not in WHOLE else 0.0
    bar = 100.0 if name in WHOLE else None
    return Figure(f"{name}: work on the DLA", value, "%", bar, "higher", detail=detail)


def segments(name: str) -> Iterator[Figure]:
    """One YOLO, for both kinds of INT8 networks."""
    before = ready(yolo_models.model(name))
    after, changes = fit_model(before)
    proof = prove(before, after, [noise(before)], run)
    for release in ("10.3", "11.4.1"):
        first, second = (survey(read(model), replace(TARGET, tensorrt=release)) for model in (before, after))
        detail = {**told(first, "before"), **told(second, "after"), "changes": len(changes), "max_error": proof.error,
                  "max_output": proof.largest}  # fmt: skip
        is_whole = second.summary.macs_yes > 0.99 and proof.relative < 1e-5
        value = len(second.regions) if is_whole else float("inf")
        yield Figure(f"{name}: segments, TensorRT {release}", value, "", YOLO[name], "lower", detail=detail)


def speed(name: str, what: str, names: tuple[str, ...] | None) -> Figure:
    """Time of the model as it is over that of the rewritten one, on a processor."""
    before = original(name)
    after, _ = fit_model(before, names)
    feed, sessions = noise(before), [session(model) for model in (before, after)]
    taken_ms: list[list[float]] = [[], []]
    for turn in range(WARM_UP + rounds(ROUNDS)):
        for position, item in enumerate(sessions):
            start_ns = time.perf_counter_ns()
            item.run(None, feed)
            if turn >= WARM_UP:
                taken_ms[position].append((time.perf_counter_ns() - start_ns) / 1e6)
    ratios = [old / new for old, new in zip(*taken_ms, strict=True)]
    detail = {f"{when}_ms": statistics.median(times) for when, times in zip(("before", "after"), taken_ms, strict=True)}
    return Figure(f"{name} on ONNX Runtime, {what}: times as fast", statistics.median(ratios), "x", n=len(ratios),
                  better="higher", detail=detail)  # fmt: skip


def measure() -> Iterator[Figure]:
    """All of it."""
    report.needs("models")
    for name in chosen(MODELS):
        yield share(name)
    for name in chosen(tuple(YOLO)):
        yield from segments(name)
    if chosen(("yolox_nano_416",)):
        yield speed("yolox_nano_416", "Focus as Conv", FOCUS)
        yield speed("yolox_nano_416", "all rewrites", None)


if __name__ == "__main__":
    report.main("Share of real networks that a DLA takes, before and after rewriting", measure)
