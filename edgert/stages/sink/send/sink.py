"""Keys of sinks that send messages, and the sink that writes them into a spool, from which another thread sends."""

from __future__ import annotations

import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
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
from edgert.runtime.worker import Worker
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


class SendSink(SimpleStage):
    """Sink that writes the messages of each result into the spool, before the next result.

    Behind a camera or a program's call, which may be a control loop, a separate thread writes, because writing takes
    several times as long as passing a result on. For files, the calling thread writes, because waking another takes as
    long. Messages with images are always made in the calling thread, while the frames are there.

    Args:
        spool: function that opens the spool; it raises StageError where another process has it.
        hands_over: whether a separate thread writes.

    Attributes:
        closing_s: maximum seconds for :meth:`close`, for which a stop waits.
    """

    closing_s = CLOSE_S

    def __init__(
        self, name: str, writer: Writer, spool: Callable[[], Spool], publisher: Publisher, hands_over: bool = True
    ) -> None:
        self.name, self._writer, self._open_spool, self._publisher = name, writer, spool, publisher
        self._hands_over = hands_over and not writer.needs_frames
        self._spool: Spool | None = None
        self._sender: Sender | None = None
        self._worker: Worker | None = None
        self._last: Future[None] | None = None

    @property
    def effort(self) -> str:
        """How much work one result is."""
        return "much" if self._writer.needs_frames else "little"

    def open(self) -> None:
        """Open the spool. Raises StageError where another process has it."""
        self._spool = self._open_spool()
        self._sender = Sender(f"stages.{self.name}", self._spool, self._publisher)
        if self._hands_over:
            self._worker = Worker(f"edgert-{self.name}-write")
            self._worker.start()

    def process(self, result: Result) -> None:
        """Write a result, or hand it to the thread.

        Raises StageError for a record without a JSON form; with a thread, the next call does.
        """
        if self._worker is None:
            self._write(result)
            return
        self._wait_for_last()
        result.frame.lease.retain()  # the machine that sent the frame waits until its result is written
        self._last = self._worker.submit(partial(self._write_held, result))

    def close(self) -> None:
        """End the thread, the sender and the spool. Raises the error of the last result."""
        worker, self._worker = self._worker, None
        try:
            self._wait_for_last()
        finally:
            if worker is not None:
                worker.stop()
            self._writer.close()
            if self._sender is not None:
                self._sender.close()
                self._sender = self._spool = None

    def _wait_for_last(self) -> None:
        last, self._last = self._last, None
        try:
            if last is not None:
                last.result()
        finally:
            del last  # its error refers to this frame, and would keep itself and the sink

    def _write_held(self, result: Result) -> None:
        try:
            self._write(result)
        finally:
            result.frame.lease.release()

    def _write(self, result: Result) -> None:
        assert self._spool is not None and self._sender is not None, "open() comes first"
        for message in self._writer.messages(result):
            number = self._spool.put(*message)
            if number is not None and result.frame.delivery is not None:
                self._sender.hold(number, result.frame.lease.retain())
        self._sender.notify()
