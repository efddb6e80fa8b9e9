"""What mutated inputs are made from: small valid files of every format, made in the current folder."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import helper
from typer.testing import CliRunner

from edgert.benchmark.core_profile import machine_identity
from edgert.bundle.shared_profile import SharedProfile
from edgert.cli import app
from edgert.graph import clean, load, read
from edgert.placement.profile import SCHEMA
from edgert.quantiles import AT
from tests.helpers.models import choice, make_proto, node, weights

PIPELINE = """\
schema: 1
name: tiny
models:
  m: {onnx: m.onnx, task: {embed: none}, input: {resize: stretch}, precision: int8, calibrate: {images: photos}}
stages: {c: {source: api}, i: {infer: m, from: c}, o: {sink: "null", from: i}}
"""
PIPELINES = (
    PIPELINE,
    """\
schema: 1
name: two
models:
  m:
    onnx: m.onnx
    task: {classify: softmax, labels: labels.txt}
    input: {resize: letterbox, color: bgr, mean: [0, 0, 0], std: 255}
    threads: 1
    backend: ort
stages:
  camera: {source: "synthetic:noise", size: 32x24, fps: 30, limit: 3}
  look: {infer: m, from: camera}
  events: {sink: jsonl, path: out/events.jsonl, from: look}
  page: {sink: http, port: 0, from: look}
budgets: {latency: 50ms}
""",
    """\
schema: 1
name: many
models:
  d:
    onnx: d.onnx
    task: {detect: yolox, labels: labels.txt, score: 0.4, iou: 0.5}
    input: {resize: letterbox, color: rgb, mean: 0, std: 255}
    tuning: {optimization: all, spinning: false}
    placement: auto
stages:
  north: {source: "synthetic:noise", size: 64x48, fps: 30, limit: 3, seed: 1}
  south: {source: "rtsp://${USER_:-me}:${PW:-secret}@127.0.0.1:554/one", transport: tcp, timeout: 5s, reconnect: true}
  find: {infer: d, from: [north, south]}
  track: {track: bytetrack, from: find}
  look: {infer: d, from: track, crop: {limit: 4, margin: 0.5}}
  paint: {draw: [boxes, labels, trails, stats], from: look, width: 96}
  video: {sink: video, from: paint, path: "out/{stream}.mp4"}
  events: {sink: jsonl, from: track, path: out/events.jsonl}
budgets: {memory: 2GiB, power: 15W, when_exceeded: stop}
""",
)


def _weights(*shape: int) -> Any:
    return np.float32(0.3) * weights(*shape)


def plain_model() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv", kernel_shape=[3, 3], pads=[1] * 4),
        node("BatchNormalization", ["c1", "b1", "b1", "b1", "v1"], ["n1"], "norm"),
        node("Relu", ["n1"], ["r1"], "relu"),
        node("MaxPool", ["r1"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2"], ["c2"], "point", kernel_shape=[1, 1]),
        node("Sigmoid", ["c2"], ["s"], "sigmoid"),
        node("Mul", ["c2", "s"], ["m"], "mul"),
        node("GlobalAveragePool", ["m"], ["g"], "mean"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("Gemm", ["f", "w3"], ["y"], "gemm"),
    ]
    stored = {"w1": _weights(8, 3, 3, 3), "b1": _weights(8), "w2": _weights(8, 8, 1, 1), "w3": _weights(8, 4)}
    model = make_proto(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 4]}, {**stored, "v1": np.ones(8, np.float32)}, ir=9)
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b'}", "stride": "8"})
    return model


def shaping_model() -> onnx.ModelProto:
    """Operators whose shapes come from values, and a branch."""
    nodes = [
        node("Resize", ["x", "", "scales"], ["r"], "resize", mode="linear"),
        node("Slice", ["r", "from", "to", "axes"], ["l"], "slice"),
        node("Split", ["l"], ["a", "b"], "split", axis=2),
        node("Concat", ["a", "b"], ["k"], "concat", axis=1),
        node("Transpose", ["k"], ["t0"], "transpose", perm=[0, 2, 3, 1]),
        node("Shape", ["t0"], ["sh"], "shape"),
        node("Gather", ["sh", "zero"], ["first"], "gather", axis=0),
        node("Reshape", ["t0", "flat"], ["q0"], "reshape"),
        node("Pad", ["q0", "pads"], ["q"], "pad"),
        node("Softmax", ["q"], ["soft"], "softmax", axis=-1),
        node("ReduceMean", ["soft"], ["mean"], "reduce", axes=[1]),
        node("QuantizeLinear", ["q", "step", "point"], ["i8"], "q"),
        node("DequantizeLinear", ["i8", "step", "point"], ["y"], "dq"),
        choice("yes", "z", node("Neg", ["q"], ["t"]), name="if"),
    ]
    numbers = {"from": [0], "to": [16], "axes": [2], "zero": [0], "flat": [1, -1], "pads": [0, 1, 0, 1], "yes": True}
    steps = {"scales": np.array([1, 1, 2, 2], np.float32), "step": np.float32(0.1), "point": np.int8(0)}
    return make_proto(nodes, {"x": [1, 3, 16, 16]}, {"y": None, "z": None}, {**numbers, **steps}, ir=9)


def text_model() -> onnx.ModelProto:
    """An open batch, attention's multiplications, and a function of its own."""
    nodes = [
        node("ConvTranspose", ["x", "w"], ["u"], "up", strides=[2, 2]),
        node("Reshape", ["u", "flat"], ["h"], "heads"),
        node("Transpose", ["h"], ["ht"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["h", "ht"], ["scores"], "scores"),
        node("Softmax", ["scores"], ["p"], "softmax"),
        node("MatMul", ["p", "h"], ["o"], "mix"),
        node("LayerNormalization", ["o", "one"], ["y0"], "norm"),
        node("Twice", ["y0"], ["y"], "twice", domain="own"),
    ]
    stored = {"w": _weights(3, 2, 2, 2), "flat": [0, 2, -1], "one": np.ones(1, np.float32)}
    model = make_proto(nodes, {"x": ["n", 3, 16, 16]}, {"y": None}, stored, ir=9)
    body, standard = [node("Add", ["a", "a"], ["b"])], helper.make_opsetid("", 17)
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, [standard]))
    return model


def detecting_model() -> bytes:
    """What YOLOX puts out for an image of 32 x 32: 21 boxes of four classes."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3], pads=[1] * 4),
        node("GlobalAveragePool", ["c"], ["g"], "mean"),
        node("Flatten", ["g"], ["f"], "flatten"),
        node("MatMul", ["f", "m"], ["r"], "all"),
        node("Reshape", ["r", "shape"], ["y"], "rows"),
    ]
    stored = {"w": _weights(8, 3, 3, 3), "m": _weights(8, 21 * 9), "shape": [1, 21, 9]}
    made = make_proto(nodes, {"x": [1, 3, 32, 32]}, {"y": [1, 21, 9]}, stored, ir=9)
    return bytes(made.SerializeToString())


def models() -> dict[str, bytes]:
    made = {"plain": plain_model(), "shaping": shaping_model(), "text": text_model()}
    return {name: bytes(model.SerializeToString()) for name, model in made.items()}


def around() -> None:
    """What other inputs name: models, labels, images and the pipeline."""
    Path("m.onnx").write_bytes(models()["plain"])
    Path("d.onnx").write_bytes(detecting_model())
    Path("labels.txt").write_text("a\nb\nc\nd\n")
    Path("p.yaml").write_text(PIPELINE)
    Path("f.yaml").write_text(
        PIPELINE.replace("source: api", "source: 'images:photos/*.png', limit: 2").replace("int8", "fp32")
    )
    Path("photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(8):
        cv2.imwrite(f"photos/{number}.png", random.integers(0, 255, (16, 16, 3), dtype=np.uint8))


def _run(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    if done.exception and done.exit_code not in (0, 1):
        raise done.exception


def bundle() -> bytes:
    """A bundle of the pipeline for a board with DLAs; called in :func:`around`'s folder."""
    _run("build", "p.yaml", "--board", "orin-nx-16gb", "--mode", "15W", "-o", "tiny.edgert")
    return Path("tiny.edgert").read_bytes()


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def ranges() -> bytes:
    _run("calibrate", "p.yaml", "-o", "ranges.json")
    return Path("ranges.json").read_bytes()


def profile() -> bytes:
    """Of the model on this machine, as ``bench --units`` writes it; its times are made up."""
    graph = read(clean(load("m.onnx"))[0])
    whole = {"alone_ms": 1.0, "busy_ms": 1.1, "kernels_ms": 1.0}
    names = ("cpu0", "cpu1")
    units = [{"name": one.name, "nodes": [one.name], "time_ms": dict.fromkeys(names, 0.1)} for one in graph.nodes]
    transition = {"hop_ms": 0.01, "tensor_ms": 0.01, "ms_per_mib": 0.1}
    head = {"schema": SCHEMA, "model": "m", "digest": load("m.onnx").digest, "board": "host", "mode": "", "runs": 12}
    rest = {"whole": dict.fromkeys(names, whole), "units": units, "transition": transition}
    return json.dumps({**head, "machine": machine_identity(), **rest}).encode()


def shared_profile() -> bytes:
    engine = {"placement": {"dla0": [0]}, "runs": 30, "median_ms": 8.0, "quantiles": [1.0] * len(AT)}
    layers = [{"nodes": [0, 1], "median_ms": 5.0, "reformat": False}, {"nodes": [2], "median_ms": 2.5}]
    model = {"digest": "a" * 64, "structure": "b" * 64, "precision": "fp16", "frames": 1, "nodes": 3, "macs": 4_000_000}
    stage = {"kind": "track", "megapixels": 2.07, "ms": 0.4, "results": 900}
    content = {
        "board": "orin-nx-16gb",
        "mode": "15W",
        "clocks": {"gpu_mhz": 612.0, "cpu_mhz": 1651.2},
        "software": {"edgert": "0.1.0", "jetpack": "6.2", "tensorrt": "10.3.0"},
        "models": [{**model, "engines": [{**engine, "layers": layers}]}],
        "stages": [stage],
    }
    return json.dumps(SharedProfile.model_validate(content).to_json()).encode()


def summary() -> bytes:
    """What ``run --json`` writes of stages' times."""
    stages = {name: {"busy_ms_per_result": 0.2, "results_in": 9} for name in ("c", "i", "o")}
    return json.dumps({"stages": stages}).encode()


def trace() -> bytes:
    box = {"type": "detections", "objects": [{"box": [0, 0, 1, 1]}]}
    rows: list[dict[str, Any]] = [{"time_s": 0.033 * at, "stream": "c", "objects": at % 3} for at in range(4)]
    rows += [{"timestamp_ns": 33_000_000 * at, "stream": "c", "outputs": {"i": box}} for at in range(4, 8)]
    return "\n".join(map(json.dumps, rows)).encode()


def annotations() -> bytes:
    rows = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 5, 5], "area": 25, "iscrowd": 0} for n in range(8)
    ]
    images = [{"id": n, "file_name": f"{n}.png", "width": 16, "height": 16} for n in range(8)]
    content = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}
    return json.dumps(content).encode()


def state() -> bytes:
    used = {"mean": 9.0, "limit": 10.0, "unit": "W"}
    budgets = {"governor": {"setting": "15W"}, "throttled": 3, "used": used}
    share = {"fps": 30.0, "latency_ms": {"p50": 1.0, "p99": 2.0}, "dropped": {"queue": 1}}
    source = {"up": False, "state_s": 9.0, "reason": "gone"}
    stats = {"fps": 30.0, "frames_out": 9, "dropped": 1, "seconds": 3.0, "peak_rss_bytes": 10**8, "budgets": budgets,
             "recent": {**share, "streams": {"cam": share}}, "stages": {"cam": {"source": source}},
             "promised": {"latency": 0.05, "memory": 10**9}}  # fmt: skip
    return json.dumps({"ok": True, "result": {"name": "tiny", "label": "one", "stats": stats}}).encode()
