"""The keys of sinks that send messages, in a pipeline file."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from edgert import installation
from edgert.config import stages as section
from edgert.config.fields import Names, OutputPath, PositiveBytes, Seconds
from edgert.config.flow import Where, upstream
from edgert.errors import ConfigError, nearest
from edgert.stages.sink.send.server import FIELDS, Server, Tls

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context
    from edgert.stages.sink.send.home_assistant import Sensor
    from edgert.stages.sink.send.sender import Publisher

_FIELDS = re.compile(r"\{(.*?)\}")
_KEY = re.compile(r"whsec_(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _topic(pattern: str) -> str:
    """Return a topic's pattern. Raises ValueError for unknown fields, wildcards and spaces."""
    for name in _FIELDS.findall(pattern):
        if name not in FIELDS:
            raise ValueError(f"no field {{{name}}}{nearest(name, FIELDS)}; known: {', '.join(FIELDS)}")
    if any(one in pattern for one in "+#*> \0") or not pattern:
        raise ValueError("expected a topic without wildcards and spaces, like edgert/{stream}")
    return pattern


Topic = Annotated[str, AfterValidator(_topic)]


class Sends(section.SinkStage):
    """Options common to sinks that send messages; see [sending](sending.md)."""

    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = False
    schemes: ClassVar[tuple[str, ...]]
    extra: ClassVar[tuple[str, str]] = ("", "")
    """Required module, and edgert's extra that installs it."""
    server: str = Field(min_length=1, repr=False, description="address of the server")
    user: str = Field(default="", description="user name")
    password: str = Field(default="", repr=False, description="${VAR} from the environment; never printed")
    tls: Tls | None = Field(
        default=None,
        description="`{ca: FILE, cert: FILE, key: FILE}`: authority of the server, own certificate and key; verify: "
        "false skips the check",
    )
    send: Literal["results", "events", "changes", "crops"] = Field(
        default="results",
        description="what to send: see [sending](sending.md)",
    )
    only: Names = Field(default=(), description="stages whose records are sent; default: all")
    every: Seconds = Field(default=0.0, description="at most one result per camera in this time")
    attach: Literal["frame", "crop"] | None = Field(
        default=None,
        description="a JPEG of at most 640 pixels: the frame with drawings, or with send: events the object",
    )
    spool: OutputPath | None = Field(
        default=None,
        description="folder in which unsent messages wait; default: in this user's state folder",
    )
    limit: PositiveBytes = Field(default=256 * 2**20, description="maximum size of the spool; the oldest messages go")
    age: Seconds = Field(default=7 * 86400.0, ge=1, description="drop messages that waited longer")

    @model_validator(mode="after")
    def _is_reached(self) -> Sends:
        example = f"expected an address like {self.schemes[0]}://HOST"
        try:
            parts = urlsplit(self.server)
            known, _ = parts.scheme in self.schemes and bool(parts.hostname), parts.port
        except ValueError as error:
            raise ValueError(f"{example}: {error}") from error
        if not known:
            raise ValueError(f"server: {example}" + (f" or {self.schemes[1]}://HOST" if self.schemes[1:] else ""))
        if parts.username or parts.password:
            raise ValueError("server: put the credentials under user: and password:, which are never printed")
        if self.tls is not None and parts.scheme not in self.schemes[1:]:
            raise ValueError(f"tls: has no meaning without {self.schemes[-1]}://")
        if self.send == "events" and (self.only or self.every):
            raise ValueError("only: and every: have no meaning with send: events")
        if self.attach is not None and self.send == "crops":
            raise ValueError("attach: has no meaning with send: crops, which are images")
        if self.attach == "crop" and self.send != "events":
            raise ValueError("attach: crop shows the object of an event; add send: events, or attach: frame")
        return self

    @property
    def reads_images(self) -> bool:
        """Whether messages have images."""
        return self.attach is not None or self.send == "crops"

    def check(self, name: str, stages: Mapping[str, section.StageConfig], where: Where) -> None:
        """Raise ConfigError for stages under ``only`` that do not come before, and for events that no stage makes."""
        before = upstream(stages, name)
        for one in self.only:
            if one not in before:
                what = f"stage {name!r} sends records of {one!r}, which is no stage before it{nearest(one, before)}"
                fix = f"before it: {', '.join(sorted(before))}"
                raise ConfigError(what, where=where(("stages", name, "only")), fix=fix)
        makers = (section.PythonStage, section.PackageStage)
        if self.send == "events" and not any(isinstance(stages[other], makers) for other in before):
            raise ConfigError(
                f"stage {name!r} sends events, but no stage before it makes any",
                where=where(("stages", name, "send")),
                fix="let it listen to {stage: events, rules: …}",
            )

    def connection(self) -> Server:
        """Return address, credentials and certificates of the server."""
        return Server(self.server, self.user, self.password, self.tls or Tls())

    @abstractmethod
    def publisher(self, context: Context, spool: Path | None) -> Publisher:
        """Return the publisher to the server, not connected yet."""

    def make(self, name: str, context: Context) -> Stage:
        """Return the sink. Raises ConfigError where the protocol's package is not installed."""
        from edgert.stages.sink.send.messages import Writer
        from edgert.stages.sink.send.sink import SendSink
        from edgert.stages.sink.send.spool import Spool

        module, extra = self.extra
        if module and find_spec(module) is None:
            what = f"sink {self.sink!r} needs the package {module.partition('.')[0]}"
            raise ConfigError(what, where=f"stages.{name}", fix=installation.command(extra), code="E107")
        chosen = self.model_dump(include={"send", "only", "attach"})
        path = self.spool or spool_path(context.pipeline, name, context.directory)
        return SendSink(
            name,
            Writer(context.pipeline, context.clock, name, every_s=self.every, **chosen),
            lambda: Spool(path, self.limit, self.age, f"stages.{name}"),
            self.publisher(context, path),
            hands_over=not context.is_waited_for,
        )


def spool_path(pipeline: str, stage: str, directory: Path) -> Path | None:
    """Return the folder of a stage's unsent messages; None for an account without a home.

    It is below ``$STATE_DIRECTORY`` (of systemd), ``$XDG_STATE_HOME`` or ``~/.local/state``.
    """
    own = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:8]
    base = os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    safe = re.sub(r"\W+", "-", f"{pipeline}-{stage}")[:80]
    return folder / "edgert" / "spool" / f"{safe}-{own}"


class Mqtt(Sends):
    """An MQTT broker."""

    schemes: ClassVar[tuple[str, ...]] = ("mqtt", "mqtts")
    extra: ClassVar[tuple[str, str]] = ("paho", "mqtt")
    topic: Topic = Field(
        default="edgert/{pipeline}/{stream}/{rule}",
        description="topic, with `{pipeline}`, `{stream}`, `{kind}` and `{rule}`",
    )
    qos: int = Field(default=1, ge=0, le=2, description="0 is not acknowledged, so a broken connection loses messages")
    retain: bool = Field(default=False, description="the broker keeps the last message for later subscribers")
    status: Topic = Field(default="edgert/{pipeline}/status", description="topic of online or offline, retained")
    home_assistant: bool = Field(
        default=False,
        description="with send: events, every rule is a sensor of [Home Assistant](sending.md#home-assistant)",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Mqtt:
        if self.home_assistant and self.send != "events":
            raise ValueError("home_assistant: shows events; add send: events")
        return self

    def publisher(self, context: Context, spool: Path | None) -> Publisher:
        from edgert.stages.sink.send.mqtt import MqttPublisher

        sensors = _sensors(context.before) if self.home_assistant else None
        announced = spool / "announced.json" if spool is not None and self.home_assistant else None
        about = self.topic, self.status, self.qos, self.retain, sensors, announced
        return MqttPublisher(self.connection(), context.pipeline, *about)


def _sensors(before: Mapping[str, section.StageConfig]) -> list[Sensor]:
    """Return a sensor for every rule and camera, as far as the pipeline file shows.

    Args:
        before: stages before the sink, by name.
    """
    from edgert.config.flow import sources_of
    from edgert.stages.sink.send.home_assistant import Sensor
    from edgert.stages.zones.areas import ZonesSection
    from edgert.stages.zones.rules import EventsSection

    areas: dict[str, tuple[str, ...]] = {}
    for one in before.values():
        if isinstance(one, ZonesSection):
            areas |= {name: area.streams for name, area in (*one.zones.items(), *one.lines.items())}
    found, streams = list[Sensor](), sources_of(before)
    for name, one in before.items():
        if isinstance(one, EventsSection):
            for rule, keys in one.rules.items():
                places = [areas.get(place, ()) for place in (*keys.zone, *keys.line)]
                here = [each for each in sorted(streams[name]) if _reaches(places, each)]
                found += [Sensor(stream, rule, not keys.line) for stream in here]
    return found


def _reaches(places: list[tuple[str, ...]], stream: str) -> bool:
    """Return whether one of the places belongs to a camera; a place without cameras belongs to all."""
    return not places or any(not streams or stream in streams for streams in places)


class Nats(Sends):
    """A NATS server."""

    schemes: ClassVar[tuple[str, ...]] = ("nats", "tls")
    extra: ClassVar[tuple[str, str]] = ("nats", "nats")
    subject: Topic = Field(
        default="edgert.{pipeline}.{stream}.{rule}", description="subject, with the fields of an MQTT topic"
    )
    jetstream: bool = Field(default=True, description="a JetStream stream stores and acknowledges; false: plain NATS")

    def publisher(self, context: Context, spool: Path | None) -> Publisher:
        from edgert.stages.sink.send.nats import NatsPublisher

        return NatsPublisher(self.connection(), self.subject, context.pipeline, self.jetstream)


class Kafka(Sends):
    """A Kafka cluster. The camera's name is the key, so its messages stay in order."""

    schemes: ClassVar[tuple[str, ...]] = ("kafka", "kafkas")
    extra: ClassVar[tuple[str, str]] = ("confluent_kafka", "kafka")
    topic: Topic = Field(default="edgert", description="topic, with the fields of an MQTT topic")
    options: dict[str, str] = Field(default_factory=dict, repr=False, description="settings of librdkafka")

    def publisher(self, context: Context, spool: Path | None) -> Publisher:
        from edgert.stages.sink.send.kafka import KafkaPublisher

        return KafkaPublisher(self.connection(), self.topic, context.pipeline, self.options)


class Webhook(Sends):
    """An HTTP POST of every message, as a CloudEvent."""

    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    headers: dict[str, str] = Field(default_factory=dict, repr=False, description="additional HTTP headers")
    secret: str = Field(default="", repr=False, description="key that signs messages (standardwebhooks.com)")
    body: Literal["json", "image"] = Field(
        default="json",
        description="json: the message; image: the JPEG alone, with details in headers",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Webhook:
        if self.body == "image" and self.attach is None:
            raise ValueError("body: image sends what attach: makes; add attach: frame, or attach: crop of events")
        if not self.secret and "secret" in self.model_fields_set:  # such as ${SECRET} of an empty variable
            raise ValueError("secret: it is empty; leave it out to send messages unsigned")
        if self.secret.startswith("whsec_") and not _KEY.fullmatch(self.secret):
            raise ValueError("secret: expected base64 behind whsec_")
        return self

    def publisher(self, context: Context, spool: Path | None) -> Publisher:
        from edgert.stages.sink.send.webhook import WebhookPublisher

        return WebhookPublisher(self.connection(), context.pipeline, self.headers, self.secret, self.body == "image")
