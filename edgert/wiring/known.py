"""Known families of models: how each is recognized, exported, fed and read, and measurements of its models."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from edgert.errors import ConfigError, nearest
from edgert.installation import shipped
from edgert.wiring.check_report import yaml_value
from edgert.yaml_nodes import LOADER


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models, a row of ``configs/families.yaml``.

    Attributes:
        name: common name of the family.
        reads: decoders of its outputs, as ``detect: yolov8``, the usual one first.
        input: input settings of its authors' code.
        source: address of that code or its description.
        export: command of its own tools that writes the ONNX file; empty where there is no single command.
        metadata: key of the file's metadata → text that the value must contain; all keys must match.
        tasks: value of the metadata's ``task`` → the decoder.
        final: options of ``detect: yolov10`` for exports that end in final boxes.
        producer: beginning of the exporter's name in the file.
        takes: possible names of the image input; any name where empty.
        gives: texts that must occur in the names of the outputs, which are joined in lower case by spaces.
        size: usual width and height, where both are dynamic.
        lengths: possible numbers of elements of its single output; any number where empty.
        results: possible numbers of outputs, where only the outputs show the family; any number where empty.
        by_file: whether only the metadata can show the family, never the outputs.
    """

    name: str
    reads: tuple[str, ...]
    input: Mapping[str, str | int | float | tuple[float, ...]]
    source: str
    export: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    final: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    lengths: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    by_file: bool = False


_TABLE = LOADER(shipped("configs/families.yaml").read_text("utf-8")).get_single_data()
_ROWS = TypeAdapter(tuple[Family, ...])
FAMILIES = _ROWS.validate_python(_TABLE["families"])
PLACEMENT_FAMILIES = _ROWS.validate_python(_TABLE["placement"])
"""Kinds of models whose images are usually placed in one way, by all publishers."""


@dataclass(frozen=True, slots=True)
class DlaShare:
    """Part of a network that a DLA runs, after all rewrites.

    Attributes:
        share: fraction of the multiply-adds on the DLA, 0 to 1.
        segments: number of segments on the DLA, each of them a loadable.
    """

    share: float
    segments: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one model by ``tests/bench/bench_models.py``.

    Attributes:
        model: file name of the model, without the ending.
        task: task of the outputs.
        metric: metric that INT8 is compared by; None where only the noise of the outputs was measured.
        images: number of images.
        fp32, int8: values of the metric, 0 to 1.
        loss: loss by INT8 in points; a gain is negative.
        low, high: 95 % interval of the loss.
        signal_db: lowest signal-to-noise ratio of the INT8 model's outputs; None where they are equal.
        kept, layers: number of layers in higher precision, and of all layers.
        warnings: warnings of the quantization.
        refused: reason why there is no INT8 model; empty where there is one.
        dla: generation of a DLA → the part of the model that it runs.
    """

    model: str
    task: str
    metric: str | None = None
    images: int = 0
    fp32: float | None = None
    int8: float | None = None
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    signal_db: float | None = None
    kept: int = 0
    layers: int = 0
    warnings: tuple[str, ...] = ()
    refused: str = ""
    dla: Mapping[int, DlaShare] | None = None

    @property
    def cost(self) -> str:
        """Change by INT8 in a few words; empty where it was not measured."""
        if self.refused or not self.layers:
            return ""
        if self.loss is None or self.int8 is None:
            return "its outputs are equal" if self.signal_db is None else f"{self.signal_db:.0f} dB"
        if self.metric in ("agreement", "cosine"):
            return f"{self.metric} {self.int8:.3f} (n={self.images})"
        return f"{0 - round(self.loss, 1):+.1f} points {self.metric} (n={self.images})".replace("-", "−")

    @property
    def int8_text(self) -> str:
        """:attr:`cost`, and the layers that stayed in higher precision."""
        return f"{self.cost}, {self.kept} of {self.layers} layers in FP32" if self.cost and self.kept else self.cost


@dataclass(frozen=True, slots=True)
class KnownFamily:
    """A row of the table of families, with measurements of models of this family."""

    family: Family
    measured: tuple[Measured, ...]

    @property
    def recipe(self) -> str:
        """Section ``models:`` of a pipeline file for a model of this family."""
        task = self.family.reads[0] if self.family.reads else "python: my_decoder:decode"
        keys = [f"      {key}: {yaml_value(value)}" for key, value in self.family.input.items()]
        lines = ["models:", "  net:", "    onnx: MODEL.onnx", f"    task: {{{task}}}", "    input:", *keys]
        return "\n".join(lines) + "\n"

    @property
    def int8(self) -> str:
        """Change by INT8 for each measured model, in a few words; empty where none was measured."""
        return "; ".join(filter(None, (one.int8_text for one in self.measured)))

    def dla(self, generation: int) -> str:
        """Return the percentage of multiply-adds on a DLA, as a range over the models; empty where unknown."""
        found = [one.dla[generation] for one in self.measured if one.dla and generation in one.dla]
        shares = sorted({round(100 * one.share) for one in found})
        if not shares:
            return ""
        counts = sorted({one.segments for one in found})
        span, parts = (f"{some[0]}" if len(some) == 1 else f"{some[0]}–{some[-1]}" for some in (shares, counts))
        return f"{span} %, {parts} segment{'' if counts == [1] else 's'}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self.family), "measured": [asdict(one) for one in self.measured], "recipe": self.recipe}


def models(name: str | None = None) -> tuple[KnownFamily, ...]:
    """Return the known families of models: how each is exported with its own tools, and measurements.

    Downloads nothing.

    Args:
        name: part of a family's name, like ``rf-detr``, or a decoder, like ``yolov8``; all families by default.

    Raises ConfigError: no family has that name.
    """
    known = tuple(KnownFamily(one, measurements().get(one.name, ())) for one in FAMILIES)
    if name is None:
        return known
    found = tuple(one for one in known if _normalize(name) and _normalize(name) in _family_names(one.family))
    if not found:
        words = [word for one in known for word in re.split(r"[\s(),]+", one.family.name.lower()) if len(word) > 2]
        words += [decoder.rpartition(": ")[2] for one in known for decoder in one.family.reads]
        fix = "edgert models lists the families; edgert new MODEL.onnx finds that of a model"
        raise ConfigError(f"unknown family of models: {name!r}{nearest(name.lower(), words)}", fix=fix)
    return found


def _normalize(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _family_names(family: Family) -> str:
    """Return the names of a family and its decoders, normalized and joined."""
    return " ".join(map(_normalize, (family.name, *family.reads, *(one.partition(": ")[2] for one in family.reads))))


_MEASURED = TypeAdapter(Measured)


@lru_cache(maxsize=1)
def measurements() -> Mapping[str, tuple[Measured, ...]]:
    """Return family name → measurements of its models; models without a family have an empty name.

    Raises ArtifactError: the shipped file is missing.
    """
    data = json.loads(shipped("configs/models.json").read_text(encoding="utf-8"))
    found: dict[str, list[Measured]] = {}
    for name, facts in data.items():
        found.setdefault(facts["family"], []).append(_MEASURED.validate_python({"model": name, **facts}))
    return {family: tuple(some) for family, some in found.items()}
