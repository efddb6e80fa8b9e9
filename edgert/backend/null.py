"""An engine that does nothing, for tests and for measuring what everything around an engine costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, Array, EngineOptions, Tensor, share_first_dimension
from edgert.errors import ModelError
from edgert.graph.model import Model
from edgert.graph.shape import with_shapes
from edgert.graph.spec import inputs, outputs
from edgert.memory import aligned_empty


class NullBackend:
    """Engines with a model's inputs and outputs whose run leaves the outputs at zero."""

    name = "null"

    def compile(self, model: Model, options: EngineOptions) -> NullEngine:
        """See :class:`~edgert.backend.base.Backend`; dynamic dimensions without a profile become 1."""
        shapes = next(iter(options.profiles.values()), {})
        if shapes:
            model = with_shapes(model, shapes)
        gives = outputs(model)
        return NullEngine(
            tuple(Tensor(t.name, _static(t.shape), t.dtype) for t in inputs(model)),
            tuple(Tensor(t.name, _static(t.shape), t.dtype) for t in gives),
            all(t.is_static for t in gives),
            share_first_dimension([t.shape for t in inputs(model)], [t.shape for t in gives]),
        )


class NullEngine:
    """See :class:`~edgert.backend.base.Engine`."""

    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    dynamic_batch = False

    def __init__(
        self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], outputs_known: bool, batched: tuple[bool, ...]
    ) -> None:
        self.inputs, self.outputs, self.outputs_known, self.batched = inputs, outputs, outputs_known, batched
        self.info: Mapping[str, Any] = {"backend": "null"}

    def session(self, profile: str | None = None) -> NullSession:
        """A new set of tensors. Raises ModelError for any profile but ``default``."""
        if profile not in (None, DEFAULT_PROFILE):
            raise ModelError(f"no profile {profile!r}", why="the null backend has only one", fix="leave profile out")
        return NullSession(self.inputs, self.outputs)

    def close(self) -> None:
        """Nothing to give back."""


class NullSession:
    """See :class:`~edgert.backend.base.Session`."""

    def __init__(self, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        self.inputs: Mapping[str, Array] = {t.name: _zeros(t) for t in inputs}
        self._outputs: list[Array] = [_zeros(t) for t in outputs]

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Returns the zeros."""
        return self._outputs


def _zeros(tensor: Tensor) -> Array:
    array = aligned_empty(tensor.shape, tensor.dtype)
    array.fill(0)
    return array


def _static(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else 1 for dim in shape)
