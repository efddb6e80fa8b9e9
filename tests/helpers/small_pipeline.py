"""A pipeline around a network of one convolution, small enough to build in a test."""

import threading
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np

from edgert.compiler.build_pipeline import Built, build
from edgert.config import load_pipeline
from edgert.graph import Model, to_bytes
from edgert.reporter import Progress, Reporter
from tests.helpers.models import Dims, conv

TEXT = """\
name: small
models:
  parts:
    onnx: parts.onnx
    task: {embed: none, labels: parts.txt}
    input: {resize: stretch, std: 255}
    precision: int8
    calibrate: {images: photos, early_stop: false}
stages:
  cam: {source: api}
  find: {infer: parts, from: cam}
  out: {sink: "null", from: find}
"""
JETSON = "orin-nx-16gb"


def network(shape: Dims) -> Model:
    """``mean`` = the average per channel of a convolution of ``x``."""
    model = conv(shape)
    del model.proto.graph.output[0]
    return model


def small_pipeline(folder: Path, text: str = TEXT, shape: Dims = (1, 3, 16, 16), photos: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "parts.onnx").write_bytes(to_bytes(network(shape)))
    (folder / "parts.txt").write_text("bolt\nnut\n")
    (folder / "photos").mkdir(exist_ok=True)
    for number in range(photos):
        write_photo(folder / "photos" / f"{number}.png", number)
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def write_photo(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), np.uint8)
    assert cv2.imwrite(str(path), pixels)


class Build:
    def __init__(
        self,
        pipeline: Path,
        output: Path,
        cache: Path,
        overrides: Iterable[str] = (),
        board: str | None = JETSON,
        tensorrt: str | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.events: list[Progress] = []
        self.built: Built = build(
            load_pipeline(pipeline, overrides),
            output,
            board=board,
            tensorrt=tensorrt,
            cache=cache,
            on_progress=Reporter(self.events.append, stop),
        )

    @property
    def made(self) -> list[str]:
        return [event.step for event in self.events if event.state == "done"]

    @property
    def details(self) -> str:
        return "\n".join(event.detail for event in self.events)
