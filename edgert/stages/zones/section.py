"""The keys of zones and events in a pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from edgert.config import stages as section
from edgert.config.fields import Fraction, Name, Names, OutputPath, Seconds, Section
from edgert.config.flow import Where, sources_of, upstream
from edgert.errors import ConfigError, nearest
from edgert.stages.zones import geometry, schedule

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context
    from edgert.stages.zones.areas import Area

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

    def area(self, name: str, inside: str, part: float) -> Area:
        """Return the area for the stage."""
        from edgert.stages.zones.areas import Area

        return Area(name, self.points, self.streams, self.classes, inside, part)  # type: ignore[arg-type]


class Zone(_Area):
    """Section of a zone: the points around it, or a mapping with them."""

    inside: Literal["foot", "center", "overlap"] | None = Field(default=None, description="as the stage's inside")

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


class ZonesSection(section.PackageStage):
    """Zones with tracked objects, and lines that they cross: see [zones](zones.md)."""

    live: ClassVar[tuple[str, ...]] = ("zones", "lines", "inside")
    takes_images: ClassVar[bool] = False
    detects: ClassVar[bool] = False
    zones: dict[Name, Annotated[Zone, section.ShortFor("points")]] = Field(
        default_factory=dict,
        description="name: [[x, y], …], as parts 0-1 of the frame or in pixels; or name: {points: …, streams: [CAMERA],"
        " classes: [person], inside: center}",
    )
    lines: dict[Name, Annotated[Line, section.ShortFor("points")]] = Field(
        default_factory=dict,
        description="name: [[x, y], [x, y]]; a crossing to the right counts as in, to the left as out",
    )
    inside: Literal["foot", "center", "overlap"] = Field(
        default="foot",
        description="what must be in a zone: foot (middle of the box's lower side), center, or overlap",
    )
    part: Fraction = Field(default=0.5, gt=0, description="part of the box, for inside: overlap")
    settle: Seconds = Field(default=0.0, description="time across a border before it counts")
    forget: Seconds = Field(default=2.0, description="time unseen after which an object has left")
    heatmap: OutputPath | None = Field(
        default=None,
        description="PNG of where objects stood, written every minute; `{stream}` makes one per camera",
    )

    @model_validator(mode="after")
    def _has_places(self) -> ZonesSection:
        if not self.zones and not self.lines:
            raise ValueError("expected zones: or lines:, like {yard: [[0.1, 0.4], [0.9, 0.4], [0.9, 1], [0.1, 1]]}")
        if both := self.zones.keys() & self.lines.keys():
            raise ValueError(f"a zone and a line are both called {min(both)!r}")
        return self

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for lines without a tracker, unknown cameras, and cameras that share a heat map."""
        if self.lines and not _is_tracked(name, stages):
            raise ConfigError(
                f"stage {name!r} has lines, but no stage before it tracks objects",
                why="crossing a line is detected from an object's earlier positions",
                where=where(("stages", name, "lines")),
                fix="let it listen to a track stage: {track: bytetrack, from: …}",
            )
        streams = sources_of(stages)[name]
        if self.heatmap is not None and len(streams) > 1 and "{stream}" not in str(self.heatmap):
            what = f"{self.heatmap} would show {' and '.join(sorted(streams))}"
            raise ConfigError(what, where=where(("stages", name, "heatmap")), fix="put {stream} into heatmap")
        for key, areas in (("zones", self.zones), ("lines", self.lines)):
            for one, area in areas.items():
                for stream in area.streams:
                    if stream not in streams:
                        raise ConfigError(
                            f"{one!r} is of camera {stream!r}, whose frames do not reach stage {name!r}"
                            f"{nearest(stream, streams)}",
                            where=where(("stages", name, key, one)),
                            fix=f"cameras here: {', '.join(sorted(streams))}",
                        )

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.zones.areas import ZonesStage
        from edgert.stages.zones.heat import HeatMap

        zones = [one.area(key, one.inside or self.inside, self.part) for key, one in self.zones.items()]
        lines = [one.area(key, "foot", self.part) for key, one in self.lines.items()]
        heat = HeatMap(self.heatmap) if self.heatmap is not None else None
        return ZonesStage(name, zones, lines, self.settle, self.forget, heat)


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


class EventsSection(section.PackageStage):
    """Events by rules on zones, lines and objects: see [zones](zones.md)."""

    live: ClassVar[tuple[str, ...]] = ("rules",)
    takes_images: ClassVar[bool] = False
    detects: ClassVar[bool] = False
    rules: dict[Name, RuleSection] = Field(min_length=1, description="name: {zone: yard, classes: person, for: 3s}")

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for rules with unknown zones, lines or stages, and for those that can never be true."""
        before = upstream(stages, name)
        places = [stage for other in before if isinstance(stage := stages[other], ZonesSection)]
        zones = {key: zone for one in places for key, zone in one.zones.items()}
        lines = {key: line for one in places for key, line in one.lines.items()}
        for rule_name, rule in self.rules.items():
            place = where(("stages", name, "rules", rule_name))
            for noun, named, known in (("zone", rule.zone, zones), ("line", rule.line, lines)):
                for one in named:
                    if one not in known:
                        raise ConfigError(
                            f"rule {rule_name!r} is about {noun} {one!r}, which no stage before it has"
                            f"{nearest(one, known)}",
                            where=place,
                            fix=f"{noun}s here: {', '.join(known)}" if known else f"add a stage: zones with {noun}s:",
                        )
                    _check_classes(rule_name, rule, noun, one, known[one].classes, place)
            for other in rule.attributes:
                _check_attribute(rule_name, other, stages, before, place)
            if rule.is_of_objects and not _is_tracked(name, stages):
                raise ConfigError(
                    f"rule {rule_name!r} is about single objects, but no stage before it tracks them",
                    where=place,
                    fix="let it listen to a track stage, or count objects: count: 1",
                )

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.zones.rules import EventsStage, Rule

        rules = [
            Rule(
                key, one.zone, one.line, one.way, one.classes, one.score, one.attributes, one.count,
                one.absent is not None, round(1e9 * (one.absent or one.hold or 0.0)), round(1e9 * one.gap), one.once,
                round(1e9 * one.every), round(1e9 * one.update), one.during,
            )
            for key, one in self.rules.items()
        ]  # fmt: skip
        return EventsStage(name, rules, context.clock, context.run)


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


def _check_classes(
    rule_name: str, rule: RuleSection, noun: str, area: str, classes: tuple[str, ...], place: str
) -> None:
    if rule.classes and classes and not set(rule.classes) & set(classes):
        raise ConfigError(
            f"rule {rule_name!r} can never be true: {noun} {area!r} is for {', '.join(classes)} only",
            where=place,
            fix=f"add {rule.classes[0]} to the {noun}'s classes:, or leave them out",
        )


def _check_attribute(
    rule_name: str, stage: str, stages: Mapping[str, section.StageConfig], before: frozenset[str], place: str
) -> None:
    found: Any = stages.get(stage)
    if stage not in before or not isinstance(found, section.InferStage) or found.crop is None:
        crops = [one for one in sorted(before) if getattr(stages[one], "crop", None) and stage != one]
        raise ConfigError(
            f"rule {rule_name!r} asks {stage!r}, which is no stage before it that looks at crops"
            f"{nearest(stage, crops)}",
            where=place,
            fix=f"stages that do: {', '.join(crops) or 'none'}",
        )


def _is_tracked(name: str, stages: Mapping[str, section.StageConfig]) -> bool:
    """Return whether objects may have track numbers there: from a tracker, user code or another package."""
    return any(
        isinstance(one := stages[other], section.TrackStage | section.PythonStage)
        or (isinstance(one, section.PackageStage) and one.detects)
        for other in upstream(stages, name)
    )
