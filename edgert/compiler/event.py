"""What a build tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

State = Literal["started", "progress", "done", "cached", "damaged", "skipped", "note", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        step: ``load``, ``calibrate``, …
        subject: the model it is about; empty for the whole pipeline.
        state: ``started`` is followed by ``done``, ``cached`` or ``failed``, with ``progress`` and ``note`` between;
            ``damaged`` is a cache entry that was thrown away; ``skipped`` is a step that is not done here.
        seconds: it took, where it ended.
        detail: one line for people.
        done, total: how far it is, for ``progress``.
    """

    step: str
    subject: str
    state: State
    seconds: float = 0.0
    detail: str = ""
    done: int = 0
    total: int = 0

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what does not apply."""
        told: dict[str, Any] = {"step": self.step, "model": self.subject, "state": self.state}
        if self.state in ("done", "cached", "failed"):
            told["seconds"] = round(self.seconds, 4)
        if self.state == "progress":
            told |= {"done": self.done, "total": self.total}
        return {**told, "detail": self.detail} if self.detail else told

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Event | None:
        """What :meth:`to_json` made, of another process; None for data that is no event."""
        if not isinstance(plain.get("step"), str) or plain.get("state") not in get_args(State):
            return None
        known = {name: plain[name] for name in ("state", "seconds", "detail", "done", "total") if name in plain}
        return cls(plain["step"], str(plain.get("model", "")), **known)


Tell = Callable[[Event], object]
"""Called with every event, from the thread it happened in."""
