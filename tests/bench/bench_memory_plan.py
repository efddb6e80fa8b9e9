"""The memory plan of ``edgert run --dry-run`` against the peak of a real run, for models it was not made on.

Every figure is a process of its own: ``edgert run`` on 60 frames of a synthetic source, its peak of physical memory
(VmHWM), the median of three; engines are in the cache, as in every start but the first. The coefficients of the plan
are measured beside it, on chains of convolutions made for nothing else: weights alone, nodes alone, activations alone.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import report

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from tests.helpers.models import node, save

BAR, RUNS, MIB = 0.15, 3, 2**20
MODELS = {
    "squeezenet_fp32": "classify: softmax",
    "mobilenet_v1_025_224": "classify: softmax",
    "yolox_nano_416": "detect: yolox",
    "nanodet_m_320": "detect: nanodet",
    "fastestdet": "detect: fastestdet",
    "deeplab_v3_mnv2_05": "segment: argmax",
    "ultraface_rfb_320": "detect: ssd",
    "person_reid_retail_0288": "embed: none",
}


def edgert(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "edgert", *arguments, "--json", "-"], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def pipeline(folder: Path, onnx: Path, task: str = "embed: none") -> str:
    path = folder / f"{onnx.stem}.yaml"
    path.write_text(
        f"models:\n  m: {{onnx: {onnx}, task: {{{task}}}, input: {{std: 255}}, precision: fp32, replicas: 1}}\n"
        'stages:\n  cam: {source: "synthetic:noise", size: 640x480, limit: 60}\n'
        '  find: {infer: m, from: cam}\n  out: {sink: "null", from: find}\n'
    )
    return str(path)


def peak(path: str) -> float:
    """MiB of real runs, the first of which fills the cache."""
    edgert("run", path, "-q")
    return statistics.median(edgert("run", path, "-q")["peak_rss_bytes"] for _ in range(RUNS)) / MIB


def planned(path: str) -> tuple[float, float]:
    """MiB of the plan, all and without what the process takes anyway."""
    plan = edgert("run", path, "--dry-run")["memory"]
    own = sum(part["size_bytes"] for part in plan["parts"] if part["kind"] != "runtime")
    return plan["total_bytes"] / MIB, own / MIB


def plans() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as text:
        for name, task in MODELS.items():
            path = pipeline(Path(text), report.DATA / "models" / f"{name}.onnx", task)
            (predicted, own), measured = planned(path), peak(path)
            error = predicted / measured - 1
            detail = {"predicted MiB": predicted, "measured MiB": measured, "of it model and frames, predicted": own}
            yield Figure(f"{name}, error {error:+.1%}", abs(error), "of the peak", BAR, n=RUNS, detail=detail)


def coefficients() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        yield _slope(
            "copies of weights", chain(folder, 2, 2048, 2), chain(folder, 4, 2048, 2), 2 * 2048 * 2048 * 4 / MIB
        )
        yield _slope("KiB of a node", chain(folder, 100, 4, 8), chain(folder, 300, 4, 8), 400 / 1024)
        more = 2 * 32 * (512**2 - 256**2) * 4 / MIB  # two tensors of 32 channels are alive at once
        yield _slope("copies of activations", chain(folder, 3, 32, 256), chain(folder, 3, 32, 512), more)


def _slope(name: str, small: str, large: str, more: float) -> Figure:
    low, high = peak(small), peak(large)
    return Figure(name, (high - low) / more, "", n=RUNS, detail={"MiB": low, "MiB of the larger": high})


def chain(folder: Path, layers: int, channels: int, size: int) -> str:
    """A pipeline around so many convolutions in a row, each with a Relu."""
    random, nodes, weights, before = np.random.default_rng(0), [], {}, "x"
    for n in range(layers):
        weights[f"w{n}"] = random.standard_normal((channels, channels if n else 3, 1, 1)).astype("f4")
        nodes += [node("Conv", [before, f"w{n}"], [f"c{n}"])]
        nodes += [node("Relu", [f"c{n}"], [f"y{n}"])]
        before = f"y{n}"
    nodes.append(node("GlobalAveragePool", [before], ["mean"]))
    ends = {"x": (1, 3, size, size)}, {"mean": (1, channels, 1, 1)}
    onnx = folder / f"chain-{layers}-{channels}-{size}.onnx"
    save(onnx, nodes, *ends, weights)
    return pipeline(folder, onnx)


def measure() -> Iterator[Figure]:
    report.needs(*(f"models/{name}.onnx" for name in MODELS))
    yield from plans()
    yield from coefficients()


if __name__ == "__main__":
    report.main(__doc__.splitlines()[0] if __doc__ else "", measure)
