"""Sections of zones, lines and rules in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from edgert.config import stages as section
from edgert.config.fields import Fraction, Names, Seconds, Section
from edgert.config.flow import upstream
from edgert.errors import ConfigError, nearest
from edgert.stages.zones import geometry, schedule

Inside = Literal["foot", "center", "overlap"]
_PLACES = "as parts 0-1 of the frame, or, where one is above 1, in pixels of the source"


def _points(value: object) -> object:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(point, (list, tuple))
        and len(point) == 2
        and all(isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0 for one in point)
        for point in value
    ):
        raise ValueError(f"expected points like [[0.1, 0.5], [0.9, 0.5]], {_PLACES}")
    return tuple((float(x), float(y)) for x, y in value)


_POINTS: dict[str, object] = {"type": "array", "items": {"type": "array", "items": {"type": "number", "minimum": 0}}}
Points = Annotated[tuple[tuple[float, float], ...], BeforeValidator(_points), WithJsonSchema(_POINTS)]


class _Area(Section):
    points: Points = Field(description="corners as parts 0-1 of the frame, or in pixels: [[x, y], …]")
    streams: Names = Field(default=(), description="cameras that it is for; default: all")
    classes: Names = Field(default=(), description="classes that it is for; default: all")


class Zone(_Area):
    """Section of a zone: the points around it, or a mapping with them."""

    inside: Inside | None = Field(default=None, description="as the stage's inside")

    @model_validator(mode="after")
    def _is_simple(self) -> Zone:
        if len(self.points) < 3:
            raise ValueError(f"a zone has three points or more, not {len(self.points)}")
        if (crossing := geometry.crossing_edges(self.points)) is not None:
            raise ValueError(
                "its border crosses itself: the edges that begin at points {} and {}; write the points in order around "
                "the zone".format(*crossing)
            )
        if not geometry.area(self.points):
            raise ValueError("it has no area: its points lie on one line")
        return self


class Line(_Area):
    """Section of a line: the points along it, or a mapping with them."""

    @model_validator(mode="after")
    def _has_length(self) -> Line:
        if len(self.points) < 2:
            raise ValueError("a line has two points or more")
        if any(one == other for one, other in zip(self.points, self.points[1:], strict=False)):
            raise ValueError("two consecutive points are the same")
        return self


def _hours(value: object) -> object:
    many = value if isinstance(value, (list, tuple)) else [value]
    return tuple(schedule.parse_hours(one) for one in many)


_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


class RuleSection(Section):
    """Section of a rule: the conditions of an event, all of which must hold."""

    zone: Names = Field(default=(), description="the object is in this zone, or one of these")
    line: Names = Field(default=(), description="the object crosses this line, or one of these")
    way: Literal["in", "out"] | None = Field(default=None, description="direction of the crossing; default: both")
    classes: Names = Field(default=(), description="labels or numbers of the object")
    score: Fraction = Field(default=0.0, description="lowest score of the object")
    attributes: dict[str, Names] = Field(
        default_factory=dict,
        description="STAGE: LABEL, or several, that a model on crops found",
    )
    count: int | None = Field(
        default=None, ge=1, description="this many objects at once make one event; default: one event per object"
    )
    absent: Seconds | None = Field(default=None, description="no such object for this time")
    hold: Seconds | None = Field(default=None, alias="for", description="the condition held for this time")
    gap: Seconds = Field(default=1.0, description="longest interruption that does not end the event")
    once: bool = Field(default=False, description="at most one event per object")
    every: Seconds = Field(default=0.0, description="at most one event per camera in this time")
    update: Seconds = Field(default=0.0, description="report again at this interval while it lasts; 0: never")
    during: Annotated[tuple[schedule.Hours, ...], BeforeValidator(_hours), WithJsonSchema(_TEXTS)] = Field(
        default=(), description="times of the week, such as mon-fri 08:00-18:00; default: always"
    )

    @model_validator(mode="after")
    def _can_be(self) -> RuleSection:
        if self.line and self.zone:
            raise ValueError("a rule is about a zone or a line, not both; write two rules")
        if self.way and not self.line:
            raise ValueError("way: needs line:")
        if self.absent is not None and (self.hold is not None or self.count is not None or self.once):
            raise ValueError("absent: is about missing objects, so for:, count: and once: have no meaning")
        lasts = [key for key, value in (("for", self.hold), ("count", self.count), ("absent", self.absent)) if value]
        if self.line and lasts:
            raise ValueError(f"crossing a line takes no time, so {lasts[0]}: can never be true")
        if self.count is not None and self.once:
            raise ValueError("once: is about one object, count: about several")
        if not self.model_fields_set & {"zone", "line", "classes", "score", "attributes", "count", "absent"}:
            raise ValueError("it has no condition; add zone:, line:, classes:, count: or absent:")
        return self

    @property
    def is_of_objects(self) -> bool:
        """Whether every object makes its own events."""
        return self.count is None and self.absent is None


def check_rules(
    name: str, verb: str, rules: tuple[str, ...], stages: Mapping[str, section.StageConfig], place: str
) -> None:
    """Raise ConfigError for a rule that no stage before a sink has. Python stages may have any rule.

    ``verb`` says what the sink does with the events.
    """
    before = [stages[other] for other in sorted(upstream(stages, name))]
    known = [rule for one in before for rule in getattr(one, "rules", ())]
    for rule in rules:
        if rule not in known and not any(isinstance(one, section.PythonStage) for one in before):
            raise ConfigError(
                f"stage {name!r} {verb} rule {rule!r}, which no stage before it has{nearest(rule, known)}",
                where=place,
                fix=f"rules here: {', '.join(known)}" if known else "let it listen to {stage: events, rules: …}",
            )


def is_tracked(name: str, stages: Mapping[str, section.StageConfig]) -> bool:
    """Return whether objects may have track numbers there: from a tracker, user code or another package."""
    return any(
        isinstance(one := stages[other], section.TrackStage | section.PythonStage)
        or (isinstance(one, section.PackageStage) and one.detects)
        for other in upstream(stages, name)
    )
