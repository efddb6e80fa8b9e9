"""What a second thread of ONNX Runtime gives a camera's model, and takes of the processor, by how it waits for work.

    python tests/bench/bench_threads.py [--json FILE]

Pipelines of one camera, a model on the processor, drawn boxes and results as JSON; at the pace of a camera, and faster
than the model can. The model has one thread, or two that wait without sleeping always, while a run lasts, which is what
``spinning: auto`` is beside cameras, or never. In turns, EDGERT_BENCH_ROUNDS rounds (3); medians. Needs EDGERT_DATA.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench_cpu_stages import CODE
from check_models import OTHERS, RECIPES
from report import main, model_file, needs
from zoo import rounds

from edgert.benchmark.measure import Figure
from edgert.pipeline import Pipeline

SECONDS = 4.0
CAMERAS = (
    ("ultraface_rfb_320", 15.0, "1920x1080"),
    ("ultraface_rfb_320", 30.0, "640x360"),
    ("nanodet_m_320", 15.0, "1280x720"),
    ("yolox_nano_416", 10.0, "1280x720"),
    ("squeezenet_fp32", 30.0, "1024x576"),
    ("ultraface_rfb_320", 600.0, "640x360"),
    ("nanodet_m_320", 200.0, "1280x720"),
    ("yolox_nano_416", 200.0, "1280x720"),
    ("squeezenet_fp32", 400.0, "1024x576"),
)
WAYS = {
    "one thread": "threads: 1",
    "two, spinning": "threads: 2, tuning: {spinning: true}",
    "two, spinning in runs": "threads: 2, tuning: {spinning: runs}",
    "two, sleeping": "threads: 2, tuning: {spinning: false}",
}


def pipeline_text(network: str, fps: float, size: str, how: str) -> str:
    """Return the pipeline file of one camera, one model and four boxes a frame that move."""
    task, image, _ = {**RECIPES, **OTHERS}[network]
    return f"""
models:
  find: {{onnx: {model_file(network)}, task: {{{task}}}, input: {{{image}}}, backend: ort, {how}}}
stages:
  camera: {{source: "python:scene:still", size: {size}, realtime: true, fps: {fps:g}, limit: {round(SECONDS * fps)}}}
  find: {{infer: find, from: camera}}
  boxes: {{python: "scene:Boxes", args: {{count: 4}}, from: find}}
  paint: {{draw: [boxes, labels], from: boxes}}
  end: {{sink: jsonl, from: paint, path: end.jsonl}}
"""


def run(path: Path) -> dict[str, float]:
    """Run a pipeline file and return its frames per second, latency in milliseconds, and cores kept busy."""
    with Pipeline(path) as pipeline:
        cpu_s, started_s = time.process_time(), time.perf_counter()
        pipeline.run()
        cores = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
        summary = pipeline.summary()
    return {
        "fps": summary.fps,
        "p50_ms": summary.latency_ms.p50,
        "p99_ms": summary.latency_ms.p99,
        "cores": cores,
    }


def measure() -> Iterator[Figure]:
    """Frames per second, latency and busy cores of each."""
    needs("models")
    found: dict[tuple[str, float, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        os.chdir(name)  # the pipeline's Python module is imported from here
        Path("scene.py").write_text(CODE, encoding="utf-8")
        path = Path(name) / "p.yaml"
        for _ in range(rounds(3)):
            for network, fps, size in CAMERAS:
                for way, how in WAYS.items():
                    path.write_text(pipeline_text(network, fps, size, how), encoding="utf-8")
                    found.setdefault((network, fps, way), []).append(run(path))
    for (network, fps, way), runs in found.items():
        detail = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        name = f"{network}, camera of {fps:g} frames/s, {way}: busy cores"
        yield Figure(name, detail.pop("cores"), "", None, "lower", len(runs), detail)


if __name__ == "__main__":
    main(__doc__ or "", measure)
