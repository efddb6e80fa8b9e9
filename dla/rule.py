"""A rule: a small function with a name and the page that it was read on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dla.limit import LIMITS
from dla.node import Node
from dla.target import Target
from dla.verdict import Verdict, no

Test = Callable[[Node, Target], Verdict | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """What one function objects to.

    Attributes:
        name: ``"conv.kernel"``.
        source: address of the page.
        about: one sentence.
        test: the function; None is no objection.
    """

    name: str
    source: str
    about: str
    test: Test

    def __call__(self, node: Node, target: Target) -> Verdict | None:
        """The function's verdict under this rule's name."""
        verdict = self.test(node, target)
        return None if verdict is None else replace(verdict, rule=self.name)


def rule(name: str, source: str = "") -> Callable[[Test], Rule]:
    """Makes a function a rule; a rule that is named like a limit has the limit's source."""

    def made(test: Test) -> Rule:
        return Rule(name, source or LIMITS[name].source, (test.__doc__ or "").strip().splitlines()[0], test)

    return made


def outside(limit: str, what: str, values: Iterable[int | None], fix: str = "") -> Verdict | None:
    """A refusal if a value is beyond a limit; values that are not known are passed over."""
    allowed = LIMITS[limit]
    known = [value for value in values if value is not None]
    if all(value in allowed for value in known):
        return None
    return no(f"{what} must be {allowed}, got {'×'.join(map(str, known))}", fix)
