"""What is known to work of each family of models: its export, how it is fed and read, what was measured."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from edgert.errors import ConfigError, nearest
from edgert.installation import shipped
from edgert.wiring.check_report import yaml_value
from edgert.wiring.families import FAMILIES, Family


@dataclass(frozen=True, slots=True)
class DlaShare:
    """What a DLA takes of a network, after all rewrites.

    Attributes:
        share: of its multiply-adds, 0 to 1.
        segments: with any of them, each a loadable.
    """

    share: float
    segments: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What ``tests/bench/bench_models.py`` found of one model.

    Attributes:
        model: its file, without the ending.
        task: how its outputs were read.
        metric: what INT8 was compared by; None where only the noise of its outputs was measured.
        images: that it was compared on.
        fp32, int8: the metric, 0 to 1.
        loss: of INT8, in points; below 0 it gained.
        low, high: its 95 % interval.
        signal_db: lowest signal to noise of the INT8 model's outputs; None where they are equal.
        kept, layers: how many layers stayed in higher precision, for whatever reason, of how many.
        warnings: what quantizing reported.
        refused: why there is no INT8 model; empty where there is one.
        dla: generation of a DLA → what it takes.
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
        """What INT8 costs, in a few words; empty where it was not measured."""
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
    """A family, and what was measured of models of it.

    Attributes:
        family: how it is exported, fed, read and recognized.
        measured: models of it.
    """

    family: Family
    measured: tuple[Measured, ...]

    @property
    def recipe(self) -> str:
        """Its section of a pipeline file."""
        task = self.family.reads[0] if self.family.reads else "python: my_decoder:decode"
        keys = [f"      {key}: {yaml_value(value)}" for key, value in self.family.input.items()]
        lines = ["models:", "  net:", "    onnx: MODEL.onnx", f"    task: {{{task}}}", "    input:", *keys]
        return "\n".join(lines) + "\n"

    @property
    def int8(self) -> str:
        """What INT8 costs, model by model, in a few words; empty where nothing was measured."""
        return "; ".join(filter(None, (one.int8_text for one in self.measured)))

    def dla(self, generation: int) -> str:
        """Return the fraction of multiply-adds that a DLA takes, as a range over the models; empty when unknown."""
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

    Raises:
        ConfigError: no family has that name.
    """
    known = tuple(KnownFamily(one, measured().get(one.name, ())) for one in FAMILIES)
    if name is None:
        return known
    found = tuple(one for one in known if _word(name) and _word(name) in _words(one.family))
    if not found:
        words = [word for one in known for word in re.split(r"[\s(),]+", one.family.name.lower()) if len(word) > 2]
        words += [decoder.rpartition(": ")[2] for one in known for decoder in one.family.reads]
        raise ConfigError(f"no family of models is called {name!r}{nearest(name.lower(), words)}",
                          fix="edgert models lists them; edgert new MODEL.onnx finds out what one is")  # fmt: skip
    return found


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _words(family: Family) -> str:
    """Return all names of a family, without separators."""
    return " ".join(map(_word, (family.name, *family.reads, *(one.partition(": ")[2] for one in family.reads))))


@lru_cache(maxsize=1)
def measured() -> Mapping[str, tuple[Measured, ...]]:
    """Return family → measurements of its models; those without a family under an empty name. Raises ArtifactError."""
    data = json.loads(shipped("configs/models.json").read_text(encoding="utf-8"))
    found: dict[str, list[Measured]] = {}
    for name, facts in data.items():
        own = {key: facts[key] for key in facts.keys() & set(Measured.__slots__) - {"dla"}}
        own["warnings"] = tuple(facts.get("warnings", ()))
        dla = {int(number): DlaShare(**one) for number, one in facts.get("dla", {}).items()}
        found.setdefault(facts["family"], []).append(Measured(model=name, dla=dla or None, **own))
    return {family: tuple(some) for family, some in found.items()}
