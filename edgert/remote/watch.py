"""A job on the board, watched to its end from any number of connections in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgert.compiler import Event
from edgert.compiler.build import Stopped
from edgert.remote.failure import LinkError, link_error
from edgert.remote.line import read_line
from edgert.remote.link import Link
from edgert.remote.patience import Patience


@dataclass
class Watch:
    """Passes on a run's events as if they happened here.

    Attributes:
        joined: somebody else started it, so that it is not ours to cancel.
        at: how much of its events is known.
        error: the error that the compiler told, if any.
        summary: its last line, once it has told it.
    """

    link: Link
    run: str
    joined: bool
    patience: Patience
    at: int = 0
    error: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    _cancelled: bool = False

    def to_end(self) -> Mapping[str, Any]:
        """How it ended, as ``edgert job follow`` tells it. Blocks.

        Raises:
            LinkError: the connection does not come back; the job goes on.
            Stopped: it is another's job, and this build was stopped.
        """
        try:
            return self.patience.through(self._once, lambda: self.at)
        except LinkError as error:
            error.fix += "; the job goes on there: the same command, once more, takes it up"
            raise

    def _once(self) -> Mapping[str, Any]:
        with self.link.call("job", "follow", self.run, str(self.at)) as call:
            for content in call.lines(self._look):
                self.at = content["at"]
                if "end" in content:
                    end: Mapping[str, Any] = content["end"]
                    return end
                if "text" in content:
                    self._pass_on(content["text"])
        raise link_error(self.link.address, "the board stopped telling")

    def _pass_on(self, text: str) -> None:
        content = read_line(text.encode())
        if content is None:
            return
        if "error" in content:
            self.error = content["error"]
        elif "bundle" in content:
            self.summary = content
        event = Event.from_json(content)
        if event is not None:
            self.patience.tell(event)

    def _look(self) -> None:
        """Ends our job when we are to stop; another's is only left."""
        if not self.patience.stop.is_set() or self._cancelled:
            return
        if self.joined:
            raise Stopped(
                "the build was stopped",
                why="another build of the same bundle goes on there, which this one had joined",
                where=self.link.address,
            )
        self.link.ask("job", "cancel", self.run)
        self._cancelled = True
