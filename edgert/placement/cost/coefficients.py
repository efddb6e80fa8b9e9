"""The numbers of the cost formulas: one file per chip in ``configs/costs``, written by ``scripts/fit_costs``.

They were fitted to published speeds alone; each file names the rows, how far off the formulas are
on networks that were left out, and which numbers nobody has measured.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

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
        half_depth, half_columns: depth and width of the product at which half of that is left.
        plain: share of the CUDA cores' peak that depthwise convolutions reach.
        bandwidth: share of the DRAM's.
        launch_us: per kernel, whatever the clock.
        launch_kcycles: per kernel, 1000 cycles of the GPU.
        run_us: per run of an engine.
    """

    dense_fp32: Share
    dense_fp16: Share
    dense_int8: Share
    half_depth: Amount
    half_columns: Amount
    plain: Share
    bandwidth: Share
    launch_us: Amount
    launch_kcycles: Amount
    run_us: Amount


class DlaCost(Part):
    """Of :mod:`edgert.placement.cost.formulas`.

    Attributes:
        dense, half_depth, half_columns, bandwidth: as of the GPU.
        plain_per_clock: elements a clock that pools and the like read.
        layer_us: per layer with the memory at its fastest; grows as the memory's clock falls.
        layer_kcycles: per layer, 1000 cycles of the DLA.
        run_us: per run of a loadable.
        sram_bytes: of each tensor, that stay in the managed SRAM.
        curved_passes: times that elements before a sigmoid pass through memory in FP16.
        fp16_share: of the INT8 rate, where no FP16 rate is published.
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
    """How far predictions were off for networks that the fit had not seen.

    Attributes:
        rows, models: published measurements and different networks.
        median, p90: relative error.
        spearman: rank correlation over the rows of the worst board with eight rows or more; None without such.
    """

    rows: Count
    models: Count
    median: Amount
    p90: Amount
    spearman: float | None = None


class Coefficients(Part):
    """Everything fitted for one chip.

    Attributes:
        soc: the chip, as boards name it.
        dla: None for chips without one.
        gpu_accuracy, dla_accuracy: of left-out networks; None: nothing published to compare with.
        assumed: dotted keys of numbers that were not fitted, and why they are what they are.
        sources: addresses of the rows.
    """

    soc: str
    gpu: GpuCost
    dla: DlaCost | None = None
    transition: TransitionCost
    contention: ContentionCost
    gpu_accuracy: Accuracy | None = None
    dla_accuracy: Accuracy | None = None
    assumed: dict[str, str] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()


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
