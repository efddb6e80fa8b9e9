"""Which kind of memory host and GPU should share tensors in: a pure function of what the GPU is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MemoryKind = Literal["mapped", "staged"]
"""mapped: one piece of memory that both sides see. staged: pinned host memory, device memory, and a copy between."""

_COHERENT = (7, 2)
"""Compute capability from which an integrated GPU reads pinned memory through the CPU's caches (Xavier): NVIDIA, "CUDA
for Tegra", table of memory types."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What decides.

    Attributes:
        integrated: the GPU shares the CPU's memory (CU_DEVICE_ATTRIBUTE_INTEGRATED).
        can_map: pinned host memory has a device address (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY).
        compute: compute capability, (8, 7).
    """

    integrated: bool
    can_map: bool
    compute: tuple[int, int]

    @property
    def coherent(self) -> bool:
        """Whether the CPU may keep memory that it shares with this GPU in its caches."""
        return self.integrated and self.compute >= _COHERENT

    @property
    def cached(self) -> bool:
        """Whether the CPU reads pinned memory through its caches, as fast as any other."""
        return self.coherent or not self.integrated


def memory_kind(traits: Traits) -> MemoryKind:
    """Mapped where sharing costs nothing.

    A discrete GPU would read mapped memory over PCI Express, as often as it reads it. An integrated one that is not
    coherent (Nano, TX2) makes the CPU read past its caches, which is slower than a copy.
    """
    return "mapped" if traits.can_map and traits.coherent else "staged"


def describe(traits: Traits) -> str:
    """The choice and its reason, for people."""
    if memory_kind(traits) == "mapped":
        return "mapped memory (integrated, I/O coherent: no copies)"
    if not traits.integrated:
        return "pinned memory and copies (discrete)"
    reason = "not I/O coherent" if traits.can_map else "cannot map host memory"
    return f"pinned memory and copies (integrated, {reason})"
