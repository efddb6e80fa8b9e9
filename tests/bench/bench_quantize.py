"""Calibration and quantization on 64 photos: our time and memory beside onnxruntime.quantization.quantize_static.

Both make a Q/DQ model with a scale per channel of the same float model and the same 64 photos, each in a process
of its own (quantize_own.py, quantize_peer.py), which both read, decode and preprocess the images by the same code
when their turn comes. Our time is from the model's file to the INT8 file, without bias correction, which the peer has
not: reading, preparing, calibrating (no early stop), thresholds, rounding, writing. The peer's is that of
quantize_static alone, from the file made ready for it (static, folded, shapes inferred) to the INT8 file; making it
ready is told, not counted. Starting Python and importing packages is in neither; memory is the most that the whole
process ever held, packages and all.

They run in turns: our job in every round, the peer's slow ones in the first PEER_ROUNDS. Ratios are of medians. Exits 1
where we take more than a fifth of the peer's time or an eighth of its memory. EDGERT_BENCH_MODELS and
EDGERT_BENCH_ROUNDS try it quickly.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import report
from zoo import NEEDED, ROOT, chosen, rounds

from edgert.benchmark.measure import Figure

HERE = Path(__file__).parent
MODELS = ("squeezenet_fp32", "yolox_nano_416", "nanodet_m_320")
METHODS = ("Entropy", "Percentile")
IMAGES = 64
ROUNDS, PEER_ROUNDS = 5, 2
TIME_BAR, MEMORY_BAR = 1 / 5, 1 / 8
_MIB = 2**20

Taken = Mapping[str, float]


def run(script: str, *arguments: object) -> Taken:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        command = [sys.executable, HERE / script, *(out if part == "OUT" else part for part in arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([str(part) for part in command], env=environment, stdout=subprocess.PIPE, check=True)
        assert out.stat().st_size > 0
    taken: Taken = json.loads(done.stdout.splitlines()[-1])
    return taken


def in_turns(name: str) -> Mapping[str, list[Taken]]:
    taken: dict[str, list[Taken]] = {job: [] for job in ("ours", "corrected", *METHODS)}
    for turn in range(rounds(ROUNDS)):
        taken["ours"].append(run("quantize_own.py", name, 0, IMAGES, "OUT"))
        taken["corrected"].append(run("quantize_own.py", name, 0, IMAGES, "OUT", "--correct"))
        if turn < PEER_ROUNDS:
            for method in METHODS:
                taken[method].append(run("quantize_peer.py", name, method, 0, IMAGES, "OUT"))
    return taken


def median(taken: list[Taken], key: str) -> float:
    return statistics.median(one[key] for one in taken)


def figures(name: str) -> Iterator[Figure]:
    taken = in_turns(name)
    ours, corrected = taken["ours"], taken["corrected"]
    for method in METHODS:
        peer = taken[method]
        seconds = {"ours_s": median(ours, "seconds"), "peer_s": median(peer, "seconds"), "peer_n": len(peer)}
        parts = {f"{part}_s": median(ours, part) for part in ("calibrate", "quantize")}
        more = {"corrected_s": median(corrected, "seconds"), "peer_ready_s": median(peer, "ready")}
        more |= {"ours_cpu_s": median(ours, "cpu"), "peer_cpu_s": median(peer, "cpu")}
        ratio = seconds["ours_s"] / seconds["peer_s"]
        detail = {**seconds, **parts, **more}
        yield Figure(f"{name}, time / {method}", ratio, "", TIME_BAR, n=len(ours), detail=detail)
        peaks = {"ours_mib": median(ours, "peak") / _MIB, "peer_mib": median(peer, "peak") / _MIB}
        floors = {"ours_before_mib": median(ours, "before") / _MIB, "peer_before_mib": median(peer, "before") / _MIB}
        peaks["corrected_mib"] = median(corrected, "peak") / _MIB
        ratio = peaks["ours_mib"] / peaks["peer_mib"]
        yield Figure(f"{name}, peak memory / {method}", ratio, "", MEMORY_BAR, n=len(ours), detail={**peaks, **floors})


def measure() -> Iterator[Figure]:
    report.needs(*NEEDED)
    for name in chosen(MODELS):
        yield from figures(name)


if __name__ == "__main__":
    report.main("Calibration and quantization on 64 photos", measure)
