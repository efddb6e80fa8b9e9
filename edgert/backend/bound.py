"""Input tensors that live as long as their session."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend.base import Array
from edgert.errors import ModelError
from edgert.memory import aligned_empty


def bound_input(name: str, shape: Sequence[object], dtype: str, path: str) -> Array:
    """A zeroed, aligned tensor for an input. Raises ModelError for a dimension that is no number."""
    tensor = aligned_empty(static_shape(name, shape, path), dtype)
    tensor.fill(0)
    return tensor


def static_shape(name: str, shape: Sequence[object], path: str) -> tuple[int, ...]:
    """The shape of an input, all numbers. Raises ModelError for a dimension that is none."""
    sizes = tuple(dim for dim in shape if isinstance(dim, int))
    if len(sizes) != len(shape):
        raise ModelError(
            f"input {name!r} has dynamic dimensions {list(shape)}",
            why="tensors are bound once, so their size must be known",
            where=path,
            fix=f"write input: size, or a profile: profiles: {{default: {{{name}: [1, 3, 320, 320]}}}}",
        )
    return sizes
