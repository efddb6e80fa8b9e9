"""The target of a check, and the rules as named functions."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dla.limit import LIMITS
from dla.node import Node, Verdict, no, window

# Releases of TensorRT that can use a DLA.
#
# Sources: NVIDIA's release notes and the DLA chapter of the TensorRT guide,
# https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/getting-started/support-matrix.html,
# https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/api/migration/tensorrt-10x-to-11x-jetson.html,
# https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html.

XAVIER, ORIN = 1, 2
"""Generations of the DLA."""

USUAL_RELEASE = {XAVIER: "8.5.2", ORIN: "10.3.0"}
"""Release of TensorRT in the last JetPack for Xavier (5), and in JetPack 6."""

RULE = "release"
_LAST_10 = (10, 7)
_FIRST_11 = (11, 4, 1)
_LAST_XAVIER = (8, 5)  # JetPack 5, the last for Xavier


def supported_by(tensorrt: str, generation: int) -> Verdict:
    """Return whether a release of TensorRT, such as ``"10.3.0"``, supports a DLA of this generation.

    Raises:
        ValueError: the text is not a version number.
    """
    version = version_numbers(tensorrt)
    if generation == XAVIER and version[:2] > _LAST_XAVIER:
        reason = f"TensorRT {tensorrt} does not support Xavier"
        return Verdict("no", RULE, reason, "use JetPack 5, whose TensorRT is 8.5")
    if version[:2] <= _LAST_10:
        return Verdict("yes", RULE, f"TensorRT {tensorrt} can use it, with INT8 scales from a calibration cache")
    if version < _FIRST_11:
        fix = "use JetPack 6 (TensorRT 10.3), or JetPack 7.2.2 with TensorRT 11.4.1 or later on AGX Orin"
        return Verdict("no", RULE, f"TensorRT {tensorrt} has no DLA: support ends at 10.7 and resumes at 11.4.1", fix)
    reason = f"TensorRT {tensorrt} can use it on AGX Orin, with strongly typed networks only"
    fix = "see what the builder reports: num_DLA_cores"
    return Verdict("verify", RULE, f"{reason}; other Orin modules are not named", fix)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return ``(10, 3, 0)`` for ``"10.3"``. Raises ValueError for text that is not a version number."""
    match = re.match(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])", version)
    if match is None:
        raise ValueError(f"expected a version number like 10.3.0, got {version!r}")
    return tuple(int(part or 0) for part in match.groups())


Precision = Literal["fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


@dataclass(frozen=True, slots=True)
class Target:
    """A DLA and the TensorRT that compiles for it.

    Attributes:
        generation: 1 for Xavier, 2 for Orin.
        tensorrt: release that builds the engine, such as ``"10.3"``.
        precision: precision of the build; an INT8 build runs nodes without an INT8 form in FP16.

    Raises:
        ValueError: there is no such generation or precision, or the release is not a version number.
    """

    generation: int = ORIN
    tensorrt: str = "10.3"
    precision: Precision = "int8"

    def __post_init__(self) -> None:
        if self.generation not in (XAVIER, ORIN):
            raise ValueError(f"expected a DLA of generation 1 (Xavier) or 2 (Orin), got {self.generation!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"expected precision fp16 or int8, got {self.precision!r}")
        version_numbers(self.tensorrt)

    @property
    def version(self) -> tuple[int, ...]:
        """Version as (major, minor, patch)."""
        return version_numbers(self.tensorrt)

    @property
    def is_orin(self) -> bool:
        """Whether the DLA is Orin's."""
        return self.generation == ORIN

    @property
    def is_int8(self) -> bool:
        """Whether the network is built for INT8."""
        return self.precision == "int8"

    @property
    def is_typed(self) -> bool:
        """Whether the network is strongly typed, so that the builder keeps the graph's types and scales."""
        return self.version >= (11,)

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return 1 if self.is_int8 else 2

    @property
    def release(self) -> Verdict:
        """Verdict on whether TensorRT supports this DLA at all."""
        return supported_by(self.tensorrt, self.generation)


# A rule is a function with a name and the public page that states it.

Test = Callable[[Node, Target], Verdict | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named function that may object to a node.

    Attributes:
        name: name such as ``"conv.kernel"``.
        source: address of the page.
        about: description in one sentence.
        test: function that returns a verdict; None means no objection.
    """

    name: str
    source: str
    about: str
    test: Test

    def __call__(self, node: Node, target: Target) -> Verdict | None:
        """Return the function's verdict under this rule's name."""
        verdict = self.test(node, target)
        return None if verdict is None else replace(verdict, rule=self.name)


def rule(name: str, source: str = "") -> Callable[[Test], Rule]:
    """Return a decorator that makes a function a rule. The default source is that of the limit of the same name."""

    def made(test: Test) -> Rule:
        return Rule(name, source or LIMITS[name].source, (test.__doc__ or "").strip().splitlines()[0], test)

    return made


def outside(limit: str, what: str, values: Iterable[int | None], fix: str = "") -> Verdict | None:
    """Return a refusal if a known value is outside a limit."""
    allowed = LIMITS[limit]
    known = [value for value in values if value is not None]
    if all(value in allowed for value in known):
        return None
    return no(f"{what} must be {allowed}, got {'×'.join(map(str, known))}", fix)


def within(limit: str, field: str, about: str, fix: str, what: str = "") -> Rule:
    """Return a rule that keeps a field of a node's window within a limit, with the limit's name."""

    def test(node: Node, target: Target) -> Verdict | None:
        at = window(node)
        return None if at is None else outside(limit, what or field, getattr(at, field), fix)

    return Rule(limit, LIMITS[limit].source, about, test)
