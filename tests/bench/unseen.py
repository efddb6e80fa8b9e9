"""Pipelines of bench_unseen.py and the networks that they have, and a run of one."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import made
import numpy as np
from bench_cpu_stages import CODE
from check_models import OTHERS, RECIPES
from report import DATA

from edgert.graph import Model, clean, inputs, load, outputs, with_shapes
from edgert.pipeline import Pipeline
from edgert.runtime import Summary
from edgert.runtime.metrics import Percentiles
from scripts.fitting import host

ROOT = Path(__file__).parents[2]
PARTS = "detect: yolox, score: 0.4", "resize: letterbox, color: rgb, mean: 0, std: 255"
PERSON = "embed: l2", "resize: stretch, color: rgb, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]"
NETWORKS = {
    "parts": PARTS,
    "osnet_x0_25_msmt17": PERSON,
    **{name: (task, image) for name, (task, image, _) in {**RECIPES, **OTHERS}.items()},
}
"""Network → its task and its input, as pipeline files have them."""
REFERENCE = "fastestdet"
"""Of no pipeline here: tells how fast the machine is now."""


def onnx_of(name: str) -> Path:
    """The file of a network."""
    return ROOT / "pipelines/assets/parts.onnx" if name == "parts" else DATA / "models" / f"{name}.onnx"


def static(name: str) -> Model:
    """A network with open sizes of one, cleaned."""
    if name in made.NAMES:
        return made.made(name)
    model = load(onnx_of(name))
    shapes = {one.name: tuple(size if isinstance(size, int) else 1 for size in one.shape) for one in inputs(model)}
    return clean(with_shapes(model, shapes))[0]


@cache
def columns(name: str) -> host.Columns:
    """What the kernels of a network do."""
    return host.columns(static(name))


def input_mp(name: str) -> float:
    """Megapixels of a network's input."""
    return _numbers(inputs(load(onnx_of(name)))[0].shape) / 3


def output_m(name: str) -> float:
    """Millions of numbers that a network gives for an image."""
    return sum(_numbers(one.shape) for one in outputs(static(name)))


def _numbers(shape: Sequence[object]) -> float:
    return float(np.prod([size for size in shape if isinstance(size, int)])) / 1e6


# A pipeline, and a run of it.


@dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
        models: name in the file → network, and how it is run.
        stages: with sources.
        objects: that a stage of Python puts on each frame.
    """

    name: str
    models: Mapping[str, tuple[str, str]]
    stages: str
    objects: int = 0

    def text(self) -> str:
        """The pipeline file."""
        lines = ["schema: 1", f"name: {self.name}", *(["models:"] if self.models else [])]
        for name, (network, how) in self.models.items():
            task, image = NETWORKS[network]
            lines.append(f"  {name}: {{onnx: {onnx_of(network)}, task: {{{task}}}, input: {{{image}}}, {how}}}")
        return "\n".join([*lines, "stages:", self.stages])


def camera(name: str, size: str, fps: float, seconds: float) -> str:
    """A source that gives prepared frames as a camera does."""
    shape = f"size: {size}, realtime: true, fps: {fps:g}, limit: {round(seconds * fps)}"
    return f"  {name}: {{source: 'python:scene:still', {shape}}}\n"


def boxes(count: int, source: str, name: str = "boxes") -> str:
    """A stage that puts so many objects on each frame, which move."""
    return f"  {name}: {{python: 'scene:Boxes', args: {{count: {count}}}, from: {source}}}\n"


START_S = 1.0
"""Of a run: the first frame of each camera finds nothing in the caches, which of 300 frames is a third of a percent."""


def run(folder: Path, case: Case) -> tuple[Summary, float]:
    """The summary of a real run, its latency without that of :data:`START_S`, and the cores that this process kept
    busy."""
    path = folder / "p.yaml"
    path.write_text(case.text(), encoding="utf-8")
    with Pipeline(path) as pipeline:
        ends = [node.meter.latency for node in pipeline._assembly.nodes if not node.outlets]

        def latencies() -> Any:
            return np.sum([one.counts() for one in ends], axis=0)

        began, started = time.process_time(), time.perf_counter()
        pipeline.start()
        before = 0 if pipeline.wait(START_S) else latencies()
        pipeline.wait()
        cores = (time.process_time() - began) / (time.perf_counter() - started)
        return replace(pipeline.summary(), latency_ms=Percentiles.of(latencies() - before)), cores


def film(folder: Path, path: str, size: str) -> None:
    """Prepared frames as a film."""
    stages = f"  still: {{source: 'python:scene:still', size: {size}, limit: 120}}\n"
    run(folder, Case("film", {}, f"{stages}  make: {{sink: video, from: still, path: {path}, encode: cpu}}\n"))


@contextmanager
def scene(sizes: Sequence[str]) -> Iterator[Path]:
    """A folder, made the current one, with the code of sources; frames of these sizes are prepared."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        os.chdir(name)
        try:
            (Path(name) / "scene.py").write_text(CODE, encoding="utf-8")
            for size in sizes:
                run(
                    Path(name),
                    Case("sizes", {}, camera("still", size, 10, 0.2) + "  end: {sink: 'null', from: still}\n"),
                )
            yield Path(name)
        finally:
            os.chdir(before)
