"""An engine that does nothing, for tests and for measuring the cost of everything around an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgert.backend import base
from edgert.graph import Model, TensorSpec, inputs, outputs, with_shapes
from edgert.memory import aligned_empty


class NullBackend:
    """Engines with a model's inputs and outputs whose run leaves the outputs at zero."""

    name = "null"

    def compile(self, model: Model, options: base.EngineOptions) -> NullEngine:
        """Return an engine of zeros. Dynamic dimensions without a profile become 1.

        Raises ModelError if a profile does not fit the model's inputs. See :class:`~edgert.backend.base.Backend`.
        """
        profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
        models = {name: with_shapes(model, shapes) if shapes else model for name, shapes in profiles.items()}
        return NullEngine(models, base.has_open_batch(spec.shape for spec in inputs(model)))


class NullEngine:
    """Engine that computes nothing and returns zeros; see :class:`~edgert.backend.base.Engine`."""

    def __init__(self, models: Mapping[str, Model], dynamic_batch: bool) -> None:
        self.profiles = tuple(models)
        self.dynamic_batch = dynamic_batch
        self._tensors = {name: (_tensors(inputs(each)), _tensors(outputs(each))) for name, each in models.items()}
        self.inputs, self.outputs = self._tensors[self.profiles[0]]
        first = models[self.profiles[0]]
        self.outputs_known = all(spec.is_static for spec in outputs(first))
        self.batched = base.share_first_dimension([t.shape for t in inputs(first)], [t.shape for t in outputs(first)])
        self.info: Mapping[str, Any] = {"backend": "null"}

    def session(self, profile: str | None = None) -> NullSession:
        name = base.checked_profile(profile, self.profiles)
        return NullSession(*self._tensors[name], self.batched if self.dynamic_batch else ())

    def close(self) -> None:
        """Do nothing."""


class NullSession:
    """Session that returns zeros; see :class:`~edgert.backend.base.Session`. No ``batched`` means a static batch."""

    def __init__(self, inputs: Sequence[base.Tensor], outputs: Sequence[base.Tensor], batched: Sequence[bool]) -> None:
        self.inputs: Mapping[str, base.Array] = {t.name: _zeros(t) for t in inputs}
        self._outputs: list[base.Array] = [_zeros(t) for t in outputs]
        self._batched = batched
        self._rows = base.row_count(self.inputs.values())

    def run(self, rows: int | None = None) -> Sequence[base.Array]:
        """Return the zeros. Raises ModelError if there are fewer rows, or ``rows`` is 0."""
        count = base.checked_rows(rows if self._batched else None, self._rows)
        if count == self._rows:
            return self._outputs
        return [array[:count] if has else array for array, has in zip(self._outputs, self._batched, strict=True)]


def _tensors(specs: Sequence[TensorSpec]) -> tuple[base.Tensor, ...]:
    shapes = [tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape) for spec in specs]
    return tuple(base.Tensor(spec.name, shape, spec.dtype) for spec, shape in zip(specs, shapes, strict=True))


def _zeros(tensor: base.Tensor) -> base.Array:
    array = aligned_empty(tensor.shape, tensor.dtype)
    array.fill(0)
    return array
