"""The answer to "can the DLA do this?"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """A refusal is a normal answer, so it is a value and no exception.

    Attributes:
        answer: ``verify`` where public sources do not settle it and only the device can.
        reason: why, in words.
        fix: what would change the answer; empty for ``yes`` and where nothing would.
    """

    answer: Literal["yes", "no", "verify"]
    reason: str
    fix: str = ""
