"""What a probe found, and what it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgert.board import Machine

State = Literal["yes", "no", "optional"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for.

    Attributes:
        name: the thing.
        state: ``yes`` it is here and works; ``no`` edgert needs it and it does not; ``optional`` it is not here, or
            not right, and edgert runs without it.
        detail: what was found, or what is wrong.
        fix: one line on how to get it; empty when nothing is to be done.
    """

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a vendor package said of itself in a process of its own.

    Attributes:
        facts: name → value, empty unless it works.
        is_absent: it is not installed.
        error: why it is installed and does not work; empty otherwise.
    """

    facts: Mapping[str, Any]
    is_absent: bool = False
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether the package could be imported and asked."""
        return not self.is_absent and not self.error


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that probes look at: files under ``root``, the machine they describe, and the packages' answers by name."""

    root: Path
    machine: Machine
    answers: Mapping[str, Answer]

    @property
    def has_gpu(self) -> bool:
        """Whether the CUDA driver drives a GPU."""
        return bool(self.answers["cuda"].facts.get("gpus"))
