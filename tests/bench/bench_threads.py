"""What a second thread of ONNX Runtime gives a camera's model, and takes of the processor, by how it waits for work.

    python tests/bench/bench_threads.py [--json FILE]

Pipelines of one camera, a model on the processor, drawn boxes and results as JSON; at the pace of a camera, and faster
than the model can. The model has one thread, or two that wait without sleeping always, while a run lasts, which is what
``spinning: auto`` is beside cameras, or never. In turns, EDGERT_BENCH_ROUNDS rounds (3); medians. Needs EDGERT_DATA.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from report import main, needs
from unseen import Case, boxes, camera, run, scene
from zoo import rounds

from edgert.benchmark.measure import Figure

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


def case_of(network: str, fps: float, size: str, how: str) -> Case:
    """The pipeline."""
    stages = (
        camera("camera", size, fps, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(4, "find")
        + "  paint: {draw: [boxes, labels], from: boxes}\n  end: {sink: jsonl, from: paint, path: end.jsonl}\n"
    )
    return Case("threads", {"find": (network, f"backend: ort, {how}")}, stages, 4)


def measure() -> Iterator[Figure]:
    """Frames per second, latency and busy cores of each."""
    needs("models")
    found: dict[tuple[str, float, str], list[dict[str, float]]] = {}
    with scene(sorted({size for _, _, size in CAMERAS})) as folder:
        for _ in range(rounds(3)):
            for network, fps, size in CAMERAS:
                for way, how in WAYS.items():
                    summary, cores = run(folder, case_of(network, fps, size, how))
                    latency = summary.latency_ms
                    one = {"fps": summary.fps, "p50_ms": latency.p50, "p99_ms": latency.p99, "cores": cores}
                    found.setdefault((network, fps, way), []).append(one)
    for (network, fps, way), runs in found.items():
        detail = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        name = f"{network}, camera of {fps:g} frames/s, {way}: busy cores"
        yield Figure(name, detail.pop("cores"), "", None, "lower", len(runs), detail)


if __name__ == "__main__":
    main(__doc__ or "", measure)
