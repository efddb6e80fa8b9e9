"""Coefficients of the cost formulas: one file per chip in ``configs/costs``, written by ``tools/fit_costs``.

They were fitted to published speeds alone. Each file names the rows, the errors of the formulas on networks that
were left out, and the numbers that nobody has measured.
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
    """Base of the records of a file: every number must be present and possible."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GpuCost(Part):
    """GPU coefficients of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense_fp32: share of the peak that an endless matrix product reaches in FP32.
        dense_fp16: the same in FP16.
        dense_int8: the same in INT8.
        half_depth: depth of the product at which half of that share is left.
        half_tile: side of a square tile of its results at which half of that share is left.
        int8_depth: ``half_depth`` in INT8.
        int8_tile: ``half_tile`` in INT8.
        attention: share of the FP16 peak that both products of an attention reach.
        plain: share of the CUDA cores' peak that depthwise convolutions reach.
        bandwidth: share of the DRAM's bandwidth.
        curved_passes: passes over a layer's output for an activation that is no rectifier.
        int8_curved: the same in INT8, for values of two bytes.
        launch_us: per kernel, whatever the clock.
        launch_kcycles: per kernel, 1000 cycles of the GPU.
        enqueue_us: per kernel, where the engine does not run as a CUDA graph.
        run_us: per run of an engine.
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
    curved_passes: Amount
    int8_curved: Amount
    launch_us: Amount
    launch_kcycles: Amount
    enqueue_us: Amount
    run_us: Amount


class DlaCost(Part):
    """DLA coefficients of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense: share of the peak that an endless matrix product reaches.
        half_depth: depth of the product at which half of that share is left.
        half_columns: width of the product at which half of that share is left.
        bandwidth: share of the DRAM's bandwidth.
        plain_per_clock: elements per clock that pools and similar layers read.
        layer_us: per layer with the memory at its fastest; grows as the memory's clock falls.
        layer_kcycles: per layer, 1000 cycles of the DLA.
        run_us: per run of a loadable.
        sram_bytes: of each tensor, that stay in the managed SRAM.
        curved_passes: times that elements before a sigmoid pass through memory in FP16.
        fp16_share: of the INT8 rate, where no FP16 rate is published.
        sparse_speedup: of products whose weights have two zeros in four, at most that of the board's peaks.
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
        to_dla_us: per tensor, beyond the reformat kernel and the loadable's own start.
        from_dla_us: per tensor, beyond the reformat kernel.
    """

    to_dla_us: Amount
    from_dla_us: Amount


class ContentionCost(Part):
    """Coefficients of :class:`edgert.placement.contention.Contention`, as shares of the DRAM's bandwidth."""

    ceiling: Share
    floor: Share


ENOUGH_ROWS = 12
"""Fewest published times that an error bar is taken from."""


class Accuracy(Part):
    """Error of times that the fit had not seen, in one precision on one kind of accelerator.

    Attributes:
        rows: published measurements; 0: the bar is that of other chips.
        models: different networks.
        publishers: who measured them.
        median: relative error for networks that the fit had not seen.
        p90: the same, exceeded by one in ten.
        bar: nine of ten times differ from the prediction by at most this share, whichever is longer, where the fit has
            seen nothing of their publisher; None: not computed.
    """

    rows: Count
    models: Count
    publishers: Count = 0
    median: Amount
    p90: Amount
    bar: Amount | None = None

    @property
    def is_known(self) -> bool:
        """Whether enough was published, by more than one publisher, for the bar to mean something on this chip."""
        return self.rows >= ENOUGH_ROWS and self.publishers > 1


class Coefficients(Part):
    """All numbers fitted for one chip.

    Attributes:
        soc: the chip, as boards name it.
        gpu: of the GPU.
        dla: None for chips without one.
        transition: between accelerators.
        contention: of the memory.
        accuracy: ``"gpu"`` or ``"dla"`` → precision → error.
        assumed: dotted keys of numbers that were not fitted, and the reason for their values.
        sources: addresses of the rows.
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
        """Return the relative error to expect of times on ``gpu``, ``dla0`` or ``dla1``; None if unknown."""
        found = self.accuracy.get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


Relation = Literal["mode", "board"]
RELATIONS: tuple[Relation, ...] = ("mode", "board")
"""Other places where a model was measured, nearest first: this board in another mode, another board of the chip."""


class SisterCost(Part):
    """Correction of a prediction by a time that was measured elsewhere on the same chip.

    Attributes:
        weight: ``"gpu"`` or ``"dla"`` → exponent of measured over predicted time there, the factor for this time.
        accuracy: chip → accelerator → precision → error of corrected times, for chips with enough rows.
    """

    weight: dict[str, Share]
    accuracy: dict[str, dict[str, dict[str, Accuracy]]] = Field(default_factory=dict)


class Sisters(Part):
    """Corrections from measurements of a related mode or board."""

    mode: SisterCost
    board: SisterCost

    def weight(self, relation: Relation, accelerator: str) -> float:
        """Return the exponent for ``gpu``, ``dla0`` or ``dla1``; that of GPUs where nothing is known of DLAs."""
        weights: dict[str, float] = getattr(self, relation).weight
        return weights.get(accelerator.rstrip("01"), weights["gpu"])

    def bar(self, relation: Relation, soc: str, accelerator: str, precision: str) -> float | None:
        """Return the relative error to expect of a corrected time; None: no smaller than without correction."""
        cost: SisterCost = getattr(self, relation)
        found = cost.accuracy.get(soc, {}).get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


def folder() -> Path:
    """Return the folder of the files of numbers."""
    return data_folder("configs") / "costs"


@cache
def coefficients(soc: str) -> Coefficients:
    """Return the coefficients of a chip. Raises ConfigError: there are none for it, or the file is damaged."""
    known = sorted(path.stem for path in folder().glob("tegra*.yaml"))
    if soc not in known:
        raise ConfigError(
            f"no cost coefficients for chip {soc!r}{nearest(soc, known)}",
            why=f"coefficients exist for {', '.join(known)}",
            fix="measure a profile on the board itself: edgert bench --units",
        )
    return load(folder() / f"{soc}.yaml")


@cache
def sisters() -> Sisters:
    """Return the corrections by measurements on other boards and in other modes; raise ConfigError if damaged."""
    return validated(folder() / "sisters.yaml", TypeAdapter(Sisters), "what measured boards tell of others")


def load(path: Path) -> Coefficients:
    """Return the coefficients of one file; raise ConfigError if it is unreadable, or a number missing or impossible."""
    return validated(path, TypeAdapter(Coefficients), "cost coefficients")


_Kind = TypeVar("_Kind")


def validated(path: Path, kind: TypeAdapter[_Kind], what: str) -> _Kind:
    """Return the numbers of one file; raise ConfigError if it is unreadable, or a number missing or impossible."""
    document = read_document(path, env={})
    try:
        return kind.validate_python(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"wrong value in a file of {what} at {key}", why=first["msg"], where=document.where(first["loc"])
        ) from error
