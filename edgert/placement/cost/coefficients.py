"""Coefficients of the cost formulas: one file per chip in ``configs/costs``, written by ``tools/fit_costs``.

They were fitted to published speeds only. Each file names its sources, the errors of the formulas on networks that were
left out of the fit, and the numbers that are assumed.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from edgert.config.document import read_document
from edgert.errors import ConfigError, nearest
from edgert.installation import data_folder

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Base of the records of a file, which must be complete and have only finite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GpuCost(Part):
    """GPU coefficients of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense_fp32, dense_fp16, dense_int8: share of the peak that an infinitely large matrix product reaches.
        half_depth, int8_depth: depth of the product at which half of that share is left, the latter in INT8.
        half_tile, int8_tile: side of a square tile of its results at which half of that share is left.
        attention: share of the FP16 peak that both products of an attention reach.
        plain: share of the CUDA cores' peak that depthwise convolutions reach.
        bandwidth: share of the DRAM bandwidth that is reached.
        cache_bytes: size of a tensor of which the cache keeps half for the next kernel.
        curved_passes: passes over a layer's output for an activation other than a rectifier.
        int8_curved: these passes in INT8, for values of two bytes.
        launch_us: part of a kernel's launch time that does not depend on the clock.
        launch_kcycles: part of a kernel's launch time in 1000 cycles of the GPU.
        enqueue_us: additional time per kernel where the engine does not run as a CUDA graph.
        run_us: time to start a run of an engine.
    """

    dense_fp32: Share
    dense_fp16: Share
    dense_int8: Share
    half_depth: Amount
    half_tile: Amount
    int8_depth: Amount
    int8_tile: Amount
    attention: Share
    plain: Share
    bandwidth: Share
    cache_bytes: Amount
    curved_passes: Amount
    int8_curved: Amount
    launch_us: Amount
    launch_kcycles: Amount
    enqueue_us: Amount
    run_us: Amount


class DlaCost(Part):
    """DLA coefficients of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense: share of the peak that an infinitely large matrix product reaches.
        half_depth: depth of the product at which half of that share is left.
        half_columns: width of the product at which half of that share is left.
        bandwidth: share of the DRAM bandwidth that is reached.
        plain_per_clock: elements per clock that pools and similar layers read.
        layer_us: time per layer at the fastest memory clock; grows as that clock falls.
        layer_kcycles: time per layer in 1000 cycles of the DLA.
        run_us: time to start a run of a loadable.
        sram_bytes: bytes of each tensor that stay in the managed SRAM.
        curved_passes: number of times that elements before a sigmoid pass through memory in FP16.
        fp16_share: FP16 rate as a share of the INT8 rate, where no FP16 rate is published.
        sparse_speedup: speedup of products whose weights have two zeros in four, at most that of the board's peaks.
    """

    dense: Share
    half_depth: Amount
    half_columns: Amount
    bandwidth: Share
    plain_per_clock: Amount
    layer_us: Amount
    layer_kcycles: Amount
    run_us: Amount
    sram_bytes: Count
    curved_passes: Count
    fp16_share: Share
    sparse_speedup: Annotated[float, Field(ge=1)] = 1.0


class TransitionCost(Part):
    """Transition coefficients of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        to_dla_us: time per tensor beyond the reformat kernel and the loadable's own start.
        from_dla_us: time per tensor beyond the reformat kernel.
    """

    to_dla_us: Amount
    from_dla_us: Amount


class ContentionCost(Part):
    """Coefficients of :class:`edgert.placement.contention.Contention`, as shares of the DRAM's bandwidth."""

    ceiling: Share
    floor: Share


ENOUGH_ROWS = 12
"""Minimum number of published times for an error bar."""


class Accuracy(Part):
    """Error of predicted times on data left out of the fit, in one precision on one kind of accelerator.

    Attributes:
        rows: number of published measurements; 0 if the bar is that of other chips.
        models, publishers: number of different networks and publishers.
        median, p90: percentiles of the relative error for networks left out of the fit.
        bar: 90th percentile of the longer over the shorter of predicted and measured time, minus 1, for publishers left
            out of the fit; None if not computed.
    """

    rows: Count
    models: Count
    publishers: Count = 0
    median: Amount
    p90: Amount
    bar: Amount | None = None

    @property
    def is_known(self) -> bool:
        """Whether enough is published, by more than one publisher, for a meaningful bar of this chip."""
        return self.rows >= ENOUGH_ROWS and self.publishers > 1


class Coefficients(Part):
    """All numbers fitted for one chip.

    Attributes:
        soc: name of the chip in board files.
        gpu: coefficients of the GPU.
        dla: coefficients of a DLA core; None for chips without a DLA.
        transition: coefficients of transitions between accelerators.
        contention: coefficients of the memory.
        accuracy: ``"gpu"`` or ``"dla"`` → precision → error.
        assumed: dotted key of a number that was not fitted → reason for its value.
        sources: addresses of the published measurements.
    """

    soc: str
    gpu: GpuCost
    dla: DlaCost | None = None
    transition: TransitionCost
    contention: ContentionCost
    accuracy: dict[str, dict[str, Accuracy]] = Field(default_factory=dict)
    assumed: dict[str, str] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def bar(self, accelerator: str, precision: str) -> float | None:
        """Return the expected relative error of times on ``gpu``, ``dla0`` or ``dla1``; None if unknown."""
        found = self.accuracy.get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


Relation = Literal["mode", "board"]
RELATIONS: tuple[Relation, ...] = ("mode", "board")
"""Where else a model was measured, nearest first: in another mode of this board, on another board of the chip."""


class SisterCost(Part):
    """Correction of a predicted time by a measurement in another mode or on another board of the same chip.

    Attributes:
        weight: ``"gpu"`` or ``"dla"`` → exponent of the factor, which is measured over predicted time there.
        accuracy: chip → accelerator → precision → error of corrected times, for chips with enough rows.
    """

    weight: dict[str, Share]
    accuracy: dict[str, dict[str, dict[str, Accuracy]]] = Field(default_factory=dict)


class Sisters(Part):
    """Corrections from measurements of a related mode or board."""

    mode: SisterCost
    board: SisterCost

    def weight(self, relation: Relation, accelerator: str) -> float:
        """Return the exponent for ``gpu``, ``dla0`` or ``dla1``; that of GPUs where none is known for DLAs."""
        weights: dict[str, float] = getattr(self, relation).weight
        return weights.get(accelerator.rstrip("01"), weights["gpu"])

    def bar(self, relation: Relation, soc: str, accelerator: str, precision: str) -> float | None:
        """Return the expected relative error of a corrected time; None if it is no smaller than without correction."""
        cost: SisterCost = getattr(self, relation)
        found = cost.accuracy.get(soc, {}).get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


def folder() -> Path:
    """Return the folder of the coefficient files."""
    return data_folder("configs") / "costs"


@cache
def coefficients(soc: str) -> Coefficients:
    """Return the coefficients of a chip; raise ConfigError if there are none or the file is damaged."""
    known = sorted(path.stem for path in folder().glob("tegra*.yaml"))
    if soc not in known:
        raise ConfigError(
            f"no cost coefficients for chip {soc!r}{nearest(soc, known)}",
            why=f"coefficients exist for {', '.join(known)}",
            fix="measure a profile on the board itself: edgert bench --units",
        )
    return validated(folder() / f"{soc}.yaml", TypeAdapter(Coefficients), "cost coefficients")


@cache
def sisters() -> Sisters:
    """Return the corrections by measurements on other boards and in other modes; raise ConfigError if damaged."""
    return validated(folder() / "sisters.yaml", TypeAdapter(Sisters), "corrections by measured boards")


_Kind = TypeVar("_Kind")


def validated(path: Path, kind: TypeAdapter[_Kind], what: str) -> _Kind:
    """Return the validated values in a file; raise ConfigError if it is unreadable or a value is missing or wrong."""
    document = read_document(path, env={})
    try:
        return kind.validate_python(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"wrong value in a file of {what} at {key}", why=first["msg"], where=document.where(first["loc"])
        ) from error
