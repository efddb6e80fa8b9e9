"""Keys of sinks that send messages, and the sink that writes them into a spool, from which another thread sends."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from edgert import installation
from edgert.config import stages as section
from edgert.config.fields import Names, OutputPath, PositiveBytes, Seconds
from edgert.config.flow import Where, upstream
from edgert.errors import ConfigError, nearest
from edgert.runtime.records import Result
from edgert.stages.context import Context, SimpleStage
from edgert.stages.sink.send.messages import Writer
from edgert.stages.sink.send.sender import CLOSE_S, Publisher, Sender
from edgert.stages.sink.send.server import FIELDS, Server, Tls
from edgert.stages.sink.send.spool import Spool

_FIELDS = re.compile(r"\{(.*?)\}")


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

    def make(self, name: str, context: Context) -> SendSink:
        """Return the sink. Raises ConfigError where the protocol's package is not installed."""
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


class SendSink(SimpleStage):
    """Sink that writes the messages of each result into the spool, before it takes the next result.

    Args:
        spool: function that opens the spool; it raises StageError where another process has it.

    Attributes:
        closing_s: maximum seconds for :meth:`close`, for which a stop waits.
        effort: how much work one result is.
    """

    closing_s = CLOSE_S

    def __init__(self, name: str, writer: Writer, spool: Callable[[], Spool], publisher: Publisher) -> None:
        self.name, self._writer, self._open_spool, self._publisher = name, writer, spool, publisher
        self.effort = "much" if writer.needs_frames else "little"
        self._spool: Spool | None = None
        self._sender: Sender | None = None

    def open(self) -> None:
        """Open the spool. Raises StageError where another process has it."""
        self._spool = self._open_spool()
        self._sender = Sender(f"stages.{self.name}", self._spool, self._publisher)

    def process(self, result: Result) -> None:
        """Write a result. Raises StageError for a record without a JSON form."""
        assert self._spool is not None and self._sender is not None, "open() comes first"
        for message in self._writer.messages(result):
            number = self._spool.put(*message)
            if number is not None and result.frame.extra.delivery is not None:
                self._sender.hold(number, result.frame.lease.retain())
        self._sender.notify()

    def close(self) -> None:
        """End the sender and close the spool."""
        self._writer.close()
        if self._sender is not None:
            self._sender.close()
            self._sender = self._spool = None
