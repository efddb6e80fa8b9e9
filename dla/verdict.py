"""The answer to "can the DLA do this?"."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Answer = Literal["yes", "no", "verify"]
Form = Literal["int8", "lookup", "fp16", "none"]
"""How a node runs in an INT8 build: on integers; integers in and out, computed in FP16 by a lookup table; in FP16; or
not on the DLA at all."""
_FORMS: tuple[Form, ...] = ("int8", "lookup", "fp16", "none")
FOLDED = "folded"
"""Rule of a node that leaves no layer behind: it costs nothing, wherever its neighbors run."""

SEVERITY: tuple[Answer, ...] = ("no", "verify", "yes")
"""Answers, the one that settles it first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A refusal is a normal answer, so it is a value and no exception.

    Attributes:
        answer: ``verify`` where public sources do not settle it and only the device can.
        rule: which rule spoke last, ``"conv.kernel"``; the layer's name where none objected.
        reason: why, in words.
        fix: what would change the answer; empty for ``yes`` and where nothing would.
        form: how the node runs in an INT8 build, if it runs on the DLA.
    """

    answer: Answer
    rule: str
    reason: str
    fix: str = ""
    form: Form = "int8"

    @property
    def int8_form(self) -> Form:
        """How the node runs in an INT8 build; a doubtful node as if the device takes it."""
        return "none" if self.answer == "no" else self.form

    @property
    def is_folded(self) -> bool:
        """Whether the node is gone before anything runs."""
        return self.rule == FOLDED


def no(reason: str, fix: str = "") -> Verdict:
    """A refusal; the caller puts the rule's name in."""
    return Verdict("no", "", reason, fix)


def verify(
    reason: str, fix: str = "see whether the device takes it: config.can_run_on_DLA", form: Form = "int8"
) -> Verdict:
    """An open question."""
    return Verdict("verify", "", reason, fix, form)


def note(reason: str, form: Form = "int8") -> Verdict:
    """Yes, and something worth knowing."""
    return Verdict("yes", "", reason, "", form)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several: a refusal beats a doubt beats a yes; the reasons of all with that answer are joined.

    Its form is the one furthest from INT8.

    Args:
        verdicts: at least one.
    """
    answer = min((verdict.answer for verdict in verdicts), key=SEVERITY.index)
    same = [verdict for verdict in verdicts if verdict.answer == answer]
    reasons, fixes = (dict.fromkeys(texts) for texts in ((v.reason for v in same), (v.fix for v in same)))
    form = furthest(verdicts)
    return Verdict(answer, same[0].rule, "; ".join(filter(None, reasons)), "; ".join(filter(None, fixes)), form)


def furthest(verdicts: Sequence[Verdict]) -> Form:
    """The form furthest from INT8 of several verdicts; ``int8`` of none."""
    return max((verdict.form for verdict in verdicts), key=_FORMS.index, default="int8")
