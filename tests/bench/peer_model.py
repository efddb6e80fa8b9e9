"""What other quantizers make of the evaluation data's models, kept under ``out/peer`` until anything changes."""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from zoo import ROOT, feeds, photos, prepared, some

from edgert.graph import Model, load, to_bytes

HERE = Path(__file__).parent
KEPT = ROOT / "out" / "peer"
ORT_METHODS = ("Entropy", "Percentile", "MinMax")
MODELOPT_METHODS = ("entropy", "max")
MODELOPT = "EDGERT_MODELOPT"
"""The Python of an environment with nvidia-modelopt[onnx], which pins an older onnx and onnxruntime than ours."""

SETTINGS = 1
"""Raise it when the peers are called in another way: what is kept is then made anew."""

Maker = Callable[[str, int, int, Path], None]
"""Quantizes a model on images FIRST to FIRST + COUNT, into a file."""


def makers() -> dict[str, Maker]:
    found = {f"ORT {method}": _ort(method) for method in ORT_METHODS}
    python = os.environ.get(MODELOPT, "")
    if python:
        found |= {f"ModelOpt {method}": _modelopt(python, method) for method in MODELOPT_METHODS}
    return found


def peer_model(peer: str, name: str, first: int, count: int) -> Model:
    """A model quantized by a peer, made now unless it is kept. Raises CalledProcessError where the peer fails."""
    images = some(photos(name), first, count)
    facts = (peer, name, prepared(name).digest, images.digest(), version("onnxruntime"), SETTINGS)
    path = KEPT / f"{name}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.onnx"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            made = Path(folder) / "made.onnx"
            makers()[peer](name, first, count, made)
            made.replace(path)
    return load(path)


def _ort(method: str) -> Maker:
    def make(name: str, first: int, count: int, out: Path) -> None:
        _run([sys.executable, HERE / "quantize_peer.py", name, method, first, count, out])

    return make


def _modelopt(python: str, method: str) -> Maker:
    def make(name: str, first: int, count: int, out: Path) -> None:
        model = prepared(name)
        images = list(feeds(name, model, first, count))
        arrays = {key: np.concatenate([one[key] for one in images]) for key in images[0]}
        ready, fed = out.with_name("ready.onnx"), out.with_name("feeds.npz")
        ready.write_bytes(to_bytes(model))
        np.savez(fed, allow_pickle=False, **arrays)
        _run([python, HERE / "modelopt_peer.py", ready, fed, method, out])

    return make


def _run(command: list[object]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stderr[-2000:]}")
