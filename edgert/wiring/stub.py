"""A decoder template with a test, for outputs that no decoder reads; both are written beside the pipeline file."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml

from edgert.backend import Engine
from edgert.config.model_section import PythonTask
from edgert.engine import output_shapes
from edgert.errors import ConfigError
from edgert.installation import shipped
from edgert.stages.decode.decoder import Size, all_cells, cells
from edgert.stages.decode.guess import STRIDES


@dataclass(frozen=True, slots=True)
class Stub:
    """A decoder template that the user fills in."""

    module: str
    files: dict[str, str]
    """File name → text of the module and its test."""

    @property
    def task(self) -> PythonTask:
        """Section ``task:`` that names this decoder."""
        return PythonTask(python=f"{self.module}:decode", args={"score": 0.25})

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
    (image,) = engine.inputs
    fields = {
        "module": module,
        "onnx": shown,
        "network": network,
        "outputs": "\n".join(rows),
        "path": repr(os.path.relpath(onnx.absolute(), folder.absolute())),
        "input": repr(image.name),
        "shape": tuple(image.shape),
        "dtype": image.dtype,
    }
    texts = yaml.safe_load(shipped("configs/decoder_template.yaml").read_text(encoding="utf-8"))
    return Stub(module, {Template(name).substitute(fields): Template(texts[name]).substitute(fields) for name in texts})


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
