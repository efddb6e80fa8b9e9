"""What a node is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dla.release import ORIN, XAVIER, supported_by, version_numbers
from dla.verdict import Verdict

Precision = Literal["fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


@dataclass(frozen=True, slots=True)
class Target:
    """A DLA and who compiles for it.

    Attributes:
        generation: 1 is Xavier's, 2 is Orin's.
        tensorrt: release that builds the engine, ``"10.3"``.
        precision: what the network is built for; an INT8 build runs in FP16 what has no INT8 form.

    Raises:
        ValueError: no such generation or precision, or no version number.
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
        """Major, minor, patch."""
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
        """Whether the network is strongly typed: types and scales stand in the graph, and nothing is promoted."""
        return self.version >= (11,)

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return 1 if self.is_int8 else 2

    @property
    def release(self) -> Verdict:
        """Whether that TensorRT knows this DLA at all."""
        return supported_by(self.tensorrt, self.generation)
