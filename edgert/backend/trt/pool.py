"""How much memory a builder, and the engine it builds, may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgert.errors import BuildError
from edgert.units import format_bytes

DLA_LEAST_BYTES = 4096
"""The DLA compiler refuses a smaller pool, and any that is no power of two: NVIDIA's page on DLA memory pools."""


@dataclass(frozen=True, slots=True)
class Pools:
    """Limits; None leaves TensorRT's own.

    Attributes:
        workspace_bytes: scratch memory of GPU layers.
        dla_sram_bytes: DLA scratch on the chip, 1 MiB per core of an Orin.
        dla_local_bytes: DRAM for one loadable's intermediate tensors; 1 GiB by default.
        dla_global_bytes: DRAM for one loadable's weights; 512 MiB by default.

    Raises:
        BuildError: a limit is not positive, or a DLA pool is no power of two of at least 4 KiB.
    """

    workspace_bytes: int | None = None
    dla_sram_bytes: int | None = None
    dla_local_bytes: int | None = None
    dla_global_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.workspace_bytes is not None and self.workspace_bytes <= 0:
            raise BuildError(f"a workspace of {self.workspace_bytes} bytes", why="it must be positive")
        for name, size_bytes in self.named():
            if name.startswith("DLA") and not _is_pool(size_bytes):
                raise BuildError(
                    f"pool {name} cannot have {size_bytes} bytes",
                    why="the DLA compiler takes powers of two from 4 KiB (4096) on",
                    fix=f"use {format_bytes(_nearest(size_bytes))}",
                )

    def named(self) -> Iterator[tuple[str, int]]:
        """TensorRT's name for each pool that is limited, and the limit."""
        sizes = {
            "WORKSPACE": self.workspace_bytes,
            "DLA_MANAGED_SRAM": self.dla_sram_bytes,
            "DLA_LOCAL_DRAM": self.dla_local_bytes,
            "DLA_GLOBAL_DRAM": self.dla_global_bytes,
        }
        return ((name, size) for name, size in sizes.items() if size is not None)


def _is_pool(size_bytes: int) -> bool:
    return size_bytes >= DLA_LEAST_BYTES and size_bytes & (size_bytes - 1) == 0


def _nearest(size_bytes: int) -> int:
    """The power of two at or above."""
    return max(DLA_LEAST_BYTES, 1 << max(size_bytes - 1, 0).bit_length())
