"""What came of quantizing a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgert.evaluation import Standing
from edgert.graph.model import Model
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.mixed import MixedPrecision, Scan
from edgert.quantization.recipe import Quantized, Recipe

# Who is told what goes on while a model is made.

Tell = Callable[[str], object]
"""Called with one line about what is being done."""
Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""


def as_progress(bar: Bar) -> Callable[[int, int | None, str], None]:
    """A bar as what calibration calls with the images done, how many there are where that is known, and a name."""

    def progress(done: int, total: int | None, name: str) -> None:
        bar("calibrating", done, total or done)

    return progress


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An INT8 model, what it was made of, and how good it is.

    Attributes:
        prepared: the float model it was made of.
        table: the ranges, with the thresholds' methods as they were used.
        recipe: how it was made.
        quantized: the INT8 model.
        kept: units left in higher precision → why.
        standing: FP32 and INT8 on the labeled images; without labels their agreement on the calibration images.
        labeled: whether ``standing`` is of labeled images.
        scan: which units cost most, if that was looked into.
        search: how the units to keep were found, if there was a budget to meet.
        sqnr_db: tensor → signal to quantization noise: outputs of weighted nodes and of the graph.
        seconds: for making it all.
        warnings: what had to be done, or could not be, without being asked for.
        is_sound: whether it is as good as its budget asks, or without one as good as INT8 usually is; also where
            nothing could tell.
    """

    prepared: Model
    table: RangeTable
    recipe: Recipe
    quantized: Quantized
    kept: Mapping[str, str]
    standing: Standing | None
    labeled: bool
    scan: Scan | None
    search: MixedPrecision | None
    sqnr_db: Mapping[str, float]
    seconds: float
    warnings: tuple[str, ...] = ()
    is_sound: bool = True

    @property
    def model(self) -> Model:
        """The INT8 model."""
        return self.quantized.model
