"""The keys of ``sink: collect`` in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from edgert.config import stages as section
from edgert.config.fields import Fraction, Names, OutputPath, PositiveBytes, Seconds, Section
from edgert.config.flow import Where, sources_of, upstream
from edgert.errors import ConfigError, nearest
from edgert.stages.zones.section import check_rules

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context


class Bounds(Section):
    """Section of a dataset's limits."""

    count: int = Field(default=1000, ge=1, description="the oldest images are removed beyond this number")
    size: PositiveBytes = Field(default=2 << 30, description="the oldest images are removed beyond this size in all")
    age: Seconds = Field(default=90 * 86400.0, ge=1, description="images older than this are removed")
    free: PositiveBytes = Field(default=1 << 30, description="nothing is added while less is free on the disk")


def _range(value: object) -> object:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_pair or not value[0] < value[1]:  # type: ignore[index]
        raise ValueError("expected two scores, the lower first, like [0.3, 0.5]")
    return value


_RANGE = WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
_STAGES = WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2})


class Collect(section.SinkStage):
    """Frames that are worth a label, as a dataset with the model's labels: see [collecting](collect.md)."""

    live: ClassVar[tuple[str, ...]] = ("every",)
    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description="folder of the dataset; a later run adds to it")
    format: Literal["yolo", "coco"] = Field(default="yolo", description="layout of the dataset")
    score: Annotated[tuple[Fraction, Fraction] | None, BeforeValidator(_range), _RANGE] = Field(
        default=None, description="keep frames with a detection whose score lies between, like `[0.3, 0.5]`"
    )
    differ: Annotated[tuple[str, str] | None, _STAGES] = Field(
        default=None, description="keep frames on which these two stages disagree about an object"
    )
    rules: Names = Field(default=(), description="keep frames in which an event of these rules begins")
    every: Seconds = Field(default=0.0, description="keep a frame of each camera in this time; 0: none")
    gap: Seconds = Field(default=10.0, description="least time between two frames of a camera kept for score or differ")
    keep: Bounds = Field(
        default_factory=Bounds,
        description="`{count: 1000, size: 2GiB, age: 90d, free: 1GiB}`, the defaults: the oldest images go; nothing is "
        "added while less is free on the disk",
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> Collect:
        if not (self.score or self.differ or self.rules or self.every):
            raise ValueError("it keeps no frame; add score: [0.3, 0.5], differ:, rules: or every: 10m")
        return self

    def check(self, name: str, stages: Mapping[str, Any], where: Where) -> None:
        """Raise ConfigError for stages and rules that do not come before, and for images that show what is hidden."""
        before = upstream(stages, name)
        for one in self.differ or ():
            if one not in before:
                what = f"stage {name!r} compares {one!r}, which is no stage before it{nearest(one, before)}"
                fix = f"before it: {', '.join(sorted(before))}"
                raise ConfigError(what, where=where(("stages", name, "differ")), fix=fix)
        check_rules(name, "keeps frames of", self.rules, stages, where(("stages", name, "rules")))
        sources = sources_of(stages)
        for other, stage in stages.items():
            if getattr(stage, "hides", False) and other not in before and sources[other] & sources[name]:
                what = f"stage {name!r} would keep images in which everything is seen that {other!r} hides"
                fix = f"let it listen to {other!r}, or to a stage behind it"
                raise ConfigError(what, where=where(("stages", name, "from")), fix=fix)

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink."""
        from edgert.stages.sink.collect.chooser import Chooser
        from edgert.stages.sink.collect.collect_sink import CollectSink
        from edgert.stages.sink.collect.dataset_folder import DatasetFolder

        chooser = Chooser(self.score, self.differ, self.rules, round(1e9 * self.gap))
        folder = DatasetFolder(self.path, self.format, f"stages.{name}", **self.keep.model_dump())
        return CollectSink(name, chooser, folder, context, self.every)
