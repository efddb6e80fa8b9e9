"""The numbers of the cost formulas: one file per chip in ``configs/costs``, written by ``tools/fit_costs``.

They were fitted to published speeds alone; each file names the rows, how far off the formulas are
on networks that were left out, and which numbers nobody has measured.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from edgert.config.document import read
from edgert.errors import ConfigError, nearest
from edgert.installation import data_folder

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Numbers of a file, each of which must be there and possible."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GpuCost(Part):
    """Of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense_fp32, dense_fp16, dense_int8: share of the peak that an endless matrix product reaches.
        half_depth: depth of the product at which half of that is left.
        half_tile: side of a square tile of its results at which half is left.
        int8_depth, int8_tile: the same in INT8.
        attention: share of the peak in halves that both products of an attention reach.
        plain: share of the CUDA cores' peak that depthwise convolutions reach.
        bandwidth: share of the DRAM's.
        curved_passes: over what a layer writes, for an activation that is no rectifier.
        int8_curved: the same in INT8, in halves.
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
    """Of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense, half_depth, bandwidth: as of the GPU.
        half_columns: width of the product at which half of that is left.
        plain_per_clock: elements a clock that pools and the like read.
        layer_us: per layer with the memory at its fastest; grows as the memory's clock falls.
        layer_kcycles: per layer, 1000 cycles of the DLA.
        run_us: per run of a loadable.
        sram_bytes: of each tensor, that stay in the managed SRAM.
        curved_passes: times that elements before a sigmoid pass through memory in FP16.
        fp16_share: of the INT8 rate, where no FP16 rate is published.
        sparse_speedup: of products whose weights have two zeros in four, at most what the board's peaks have.
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
    """Of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        to_dla_us, from_dla_us: per tensor, beyond the reformat kernel and the loadable's own start.
    """

    to_dla_us: Amount
    from_dla_us: Amount


class ContentionCost(Part):
    """Of :class:`edgert.placement.contention.Contention`; shares of the DRAM's bandwidth."""

    ceiling: Share
    floor: Share


class Accuracy(Part):
    """How far times were off for networks that the fit had not seen, in one precision on one kind of accelerator.

    Attributes:
        rows, models: published measurements and different networks; no rows: the bar is that of other chips.
        median, p90: relative error.
        bar: nine of ten times were at most so much longer than predicted, or the prediction than the time; None: not
            computed.
    """

    rows: Count
    models: Count
    median: Amount
    p90: Amount
    bar: Amount | None = None


class Coefficients(Part):
    """Everything fitted for one chip.

    Attributes:
        soc: the chip, as boards name it.
        dla: None for chips without one.
        accuracy: ``"gpu"`` or ``"dla"`` → precision → how far off it is.
        assumed: dotted keys of numbers that were not fitted, and why they are what they are.
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
        """Relative error to expect of times on ``gpu``, ``dla0`` or ``dla1``; None: nothing is known of it."""
        found = self.accuracy.get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


Relation = Literal["mode", "board"]
RELATIONS: tuple[Relation, ...] = ("mode", "board")
"""Where else a model was measured: on this board in another mode, or on another board of the chip; the nearer first."""


class SisterCost(Part):
    """What a time that was measured elsewhere on the same chip shows.

    Attributes:
        weight: ``"gpu"`` or ``"dla"`` → the power of measured over predicted time there that is put to this time.
        accuracy: chip → accelerator → precision → how far off it is then, of chips with enough rows.
    """

    weight: dict[str, Share]
    accuracy: dict[str, dict[str, dict[str, Accuracy]]] = Field(default_factory=dict)


class Sisters(Part):
    """By where the other time is from."""

    mode: SisterCost
    board: SisterCost

    def weight(self, relation: Relation, accelerator: str) -> float:
        """Of ``gpu``, ``dla0`` or ``dla1``; that of GPUs where nothing is known of DLAs."""
        weights: dict[str, float] = getattr(self, relation).weight
        return weights.get(accelerator.rstrip("01"), weights["gpu"])

    def bar(self, relation: Relation, soc: str, accelerator: str, precision: str) -> float | None:
        """Relative error to expect of a corrected time; None: no narrower than without."""
        cost: SisterCost = getattr(self, relation)
        found = cost.accuracy.get(soc, {}).get(accelerator.rstrip("01"), {}).get(precision)
        return found.bar if found is not None else None


def folder() -> Path:
    """Where the files of numbers are."""
    return data_folder("configs") / "costs"


@cache
def coefficients(soc: str) -> Coefficients:
    """The coefficients of a chip.

    Raises:
        ConfigError: there are none for it, or the file is damaged.
    """
    known = sorted(path.stem for path in folder().glob("tegra*.yaml"))
    if soc not in known:
        raise ConfigError(
            f"no cost coefficients for chip {soc!r}{nearest(soc, known)}",
            why=f"there are some for {', '.join(known)}",
            fix="measure a profile on the board itself: edgert bench --units",
        )
    return load(folder() / f"{soc}.yaml")


@cache
def sisters() -> Sisters:
    """What measurements on other boards and in other modes are worth. Raises ConfigError: the file is damaged."""
    return validated(folder() / "sisters.yaml", TypeAdapter(Sisters), "what measured boards tell of others")


def load(path: Path) -> Coefficients:
    """Reads one file of coefficients. Raises ConfigError: unreadable, a missing or impossible number."""
    return validated(path, TypeAdapter(Coefficients), "cost coefficients")


_Kind = TypeVar("_Kind")


def validated(path: Path, kind: TypeAdapter[_Kind], what: str) -> _Kind:
    """Reads one file of numbers. Raises ConfigError: unreadable, a missing or impossible number."""
    document = read(path, env={})
    try:
        return kind.validate_python(document.data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"wrong value in a file of {what} at {key}", why=first["msg"], where=document.where(first["loc"])
        ) from error
