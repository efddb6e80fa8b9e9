"""A decoder template with a test, for outputs that no decoder reads; both are written beside the pipeline file."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from edgert.backend import Engine
from edgert.config.model_section import PythonTask
from edgert.engine import output_shapes
from edgert.errors import ConfigError
from edgert.stages.decode.decoder import Size, all_cells, cells
from edgert.stages.decode.guess import STRIDES


@dataclass(frozen=True, slots=True)
class Stub:
    """A decoder template that the user fills in."""

    module: str
    text: str
    test: str

    @property
    def task(self) -> PythonTask:
        """Section ``task:`` that names this decoder."""
        return PythonTask(python=f"{self.module}:decode", args={"score": 0.25})

    @property
    def files(self) -> dict[str, str]:
        """File name → text of the module and its test."""
        return {f"{self.module}.py": self.text, f"test_{self.module}.py": self.test}

    def refuse_existing(self, folder: Path) -> None:
        """Check that neither file exists. Raises ConfigError: one does, and the user may have filled it in."""
        if there := next((folder / name for name in self.files if (folder / name).exists()), None):
            raise ConfigError(
                f"{str(there)!r} exists already",
                why="a decoder template would replace it; nothing was written",
                fix="--force keeps it and writes the pipeline file alone, or choose --output in another folder",
            )


def make_stub(engine: Engine, network: Size, onnx: Path, folder: Path) -> Stub:
    """Return the decoder template for a model's outputs."""
    stem = re.sub(r"\W", "_", onnx.stem, flags=re.ASCII)
    module = f"{stem if not stem[:1].isdigit() else f'net_{stem}'}_decoder"
    shapes = [tuple(shape) for shape in output_shapes(engine)]
    names = [tensor.name for tensor in engine.outputs]
    rows = [
        f"    {name!r}: {shape},{_shape_comment(shape, network)}" for name, shape in zip(names, shapes, strict=True)
    ]
    shown = re.sub(r"[^\w.-]", "_", onnx.name)  # for a docstring
    fields = {"module": module, "onnx": shown, "network": network, "outputs": "\n".join(rows)}
    (image,) = engine.inputs
    path = os.path.relpath(onnx.absolute(), folder.absolute())
    test = _TEST.format(**fields, path=path, input=image.name, shape=tuple(image.shape), dtype=image.dtype)
    return Stub(module, _MODULE.format(**fields), test)


def _shape_comment(shape: tuple[int, ...], network: Size) -> str:
    """Return a comment on the probable meaning of a shape; empty where unknown."""
    strides = ", ".join(map(str, STRIDES))
    counts = {all_cells(network, STRIDES): f"every cell of strides {strides}"}
    counts |= {cells(network, stride): f"every cell of stride {stride}" for stride in STRIDES}
    counts |= {3 * count: f"three anchors for {what}" for count, what in counts.items()}
    found = [f"{size} is {counts[size]}" for size in shape if size in counts]
    if len(shape) >= 2 and shape[-1] == 4:
        found.append("4 may be a box")
    if len(shape) >= 3 and shape[-1] == shape[-2] * network[0] / network[1] and network[0] % shape[-1] == 0:
        found.append(f"a map of stride {network[0] // shape[-1]}")
    return f"  # {'; '.join(found)}" if found else ""


_MODULE = '''"""Reads the outputs of {onnx}, which no decoder of edgert knows. To be filled in: decode().

It returns one record of edgert.runtime: Detections, as here, or Classification, Segmentation, Keypoints, Embedding,
Text, DepthMap, OutputImage, AnomalyMap. What edgert's own decoders are made of is in docs/extending.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgert.runtime import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import suppress

NETWORK = {network}  # width and height of the image that the model sees
OUTPUTS = {{  # without the batch dimension; 0 where a size is dynamic
{outputs}
}}


def decode(outputs: Sequence[Any], geometry: Geometry, score: float = 0.25, iou: float = 0.45) -> Detections:
    """Return the boxes of one image, the best score first.

    Args:
        outputs: arrays of the shapes above, in that order; the next image overwrites their memory.
        geometry: mapping from network pixels to pixels of the image.
        score, iou: args of the task in the pipeline file.
    """
    found = dict(zip(OUTPUTS, outputs, strict=True))
    assert found  # fill in: compute these three arrays from found[NAME]
    boxes = np.zeros((0, 4), np.float32)  # x1, y1, x2, y2 in network pixels
    scores = np.zeros(0, np.float32)  # 0 to 1
    classes = np.zeros(0, np.int32)

    strong = np.flatnonzero(scores >= score)
    rows = strong[suppress(boxes[strong], scores[strong], classes[strong], iou, limit=300)]
    return Detections(geometry.boxes(boxes[rows]), scores[rows], classes[rows])
'''

_TEST = '''"""Tests of {module}: what every decoder must do, and a run on outputs of {onnx}."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from {module} import NETWORK, OUTPUTS, decode

import edgert
from edgert.stages.crop import Geometry
from edgert.testing import OwnDecoderSuite

MODEL = Path(__file__).parent / {path!r}


class TestDecode(OwnDecoderSuite):
    decode, shapes, network = staticmethod(decode), tuple(OUTPUTS.values()), NETWORK


def test_it_reads_what_the_model_writes() -> None:
    with edgert.load_engine(MODEL, shapes={{{input!r}: {shape}}}) as engine:
        assert [tensor.name for tensor in engine.outputs] == list(OUTPUTS)
        image = np.random.default_rng(0).uniform(0, 1, {shape}).astype(np.{dtype})
        found = engine(image)
    outputs = [array[0] for array in (found if isinstance(found, tuple) else (found,))]
    record = decode(outputs, Geometry(1, 1, 0, 0, NETWORK, (0, 0, *NETWORK)))
    assert len(record.boxes) == len(record.scores) == len(record.classes)
    # To be filled in: a photo instead of noise, and the objects on it.
'''
