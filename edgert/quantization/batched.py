"""Open batch dimension of an INT8 model, and the check that each image gives the same result as alone."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.ort import Function
from edgert.errors import BuildError, ModelError
from edgert.graph import Model, Node, TensorSpec, inputs, outputs, read, write
from edgert.graph.batch_size import has_open_batch, with_open_batch
from edgert.quantization.calibration.walk import Feeds

Array = npt.NDArray[Any]

TOLERANCE = 0.02
"""Largest relative difference, as a root mean square, between two images at once and each alone. Kernels may sum in
another order for another batch, which behind a Q node can change a step, 1/255 of a range. Mixed images differ by 1 and
more."""
PAIR = 2
"""Number of images that are compared."""


def open_batch(model: Model, feeds: Sequence[Feeds] = (), *, file: Model | None = None) -> Model:
    """Return the model with an open batch dimension, or the model itself where its batch is not 1.

    Two images in one batch are compared with each image alone. Every node runs as the ONNX standard defines it.

    Args:
        model: static, clean model.
        feeds: images to compare on, each of batch 1; noise replaces missing ones.
        file: model it was made of, which the error mentions if it accepts several images.

    Raises:
        ModelError: a node accepts one image only, or mixes images.
    """
    if any(spec.shape[:1] != (1,) for spec in inputs(model)):
        return model
    made = with_open_batch(model)
    trial = _Trial(model, made, [*feeds, *_noise(inputs(model))][:PAIR])
    closed = [spec.name for spec in outputs(model) if spec.shape[:1] != (1,)]
    if closed or not trial.agrees(None):
        raise _batch_error(model, trial, closed, file is not None and accepts_several(file, trial.feeds))
    return made


def accepts_several(model: Model, feeds: Sequence[Feeds]) -> bool:
    """Return whether a model has an open batch and gives the same for two images at once as for each alone.

    Args:
        model: model to run.
        feeds: two images, each of batch 1.
    """
    return has_open_batch(model) and _Trial(model, model, feeds[:PAIR]).agrees(None)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Comparison of a model with the same model with an open batch, on two images."""

    model: Model
    made: Model
    feeds: Sequence[Feeds]

    def agrees(self, count: int | None) -> bool:
        """Return whether both models agree on the graph's outputs, or on all that the first ``count`` nodes compute."""
        try:
            alone = [self._run(self.model, count, feed) for feed in self.feeds]
            both = {name: np.concatenate([feed[name] for feed in self.feeds]) for name in self.feeds[0]}
            together = self._run(self.made, count, both)
        except BuildError:  # sizes do not fit two images
            return False
        agree = _equals_stacked if count is None else _holds_both
        return all(agree([results[name] for results in alone], array) for name, array in together.items())

    def _run(self, model: Model, count: int | None, feed: Feeds) -> Mapping[str, Array]:
        """Return the graph's outputs, or all that the first ``count`` nodes compute."""
        part = model
        if count is not None:
            graph, types = read(model), read(self.model).specs
            names = [name for node in graph.nodes[:count] for name in node.outputs if name in types]
            seen = tuple(TensorSpec(name, (), types[name].dtype, ranked=False) for name in names)
            part = write(replace(graph, nodes=graph.nodes[:count], outputs=seen), model)
        return Function(part, fused=False)(feed)

    def find_mixing_node(self) -> Node | None:
        """Return the first node that treats two images differently; None where only the outputs differ."""
        nodes = read(self.made).nodes
        if self.agrees(len(nodes)):
            return None
        return nodes[bisect(range(1, len(nodes)), False, key=lambda count: not self.agrees(count))]


def _equals_stacked(alone: Sequence[Array], both: Array, axis: int = 0) -> bool:
    rows = np.concatenate(alone, axis)
    if rows.shape != both.shape:
        return False
    if rows.dtype.kind not in "fiu":
        return bool(np.array_equal(rows, both))
    known = np.isfinite(rows)
    first, second = rows[known].astype(np.float64), both[known].astype(np.float64)
    return bool(np.linalg.norm(first - second) <= TOLERANCE * np.linalg.norm(first))


def _holds_both(alone: Sequence[Array], both: Array) -> bool:
    """Return whether an inner tensor holds both images along a dimension, or is the same for all images."""
    if both.shape == alone[0].shape and all(np.array_equal(image, both) for image in alone):
        return True
    return both.ndim == alone[0].ndim and any(_equals_stacked(alone, both, axis) for axis in range(both.ndim))


def _noise(specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    random = np.random.default_rng(0)
    shapes = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in specs}
    return [
        {spec.name: random.uniform(0, 1, shapes[spec.name]).astype(spec.dtype) for spec in specs} for _ in range(PAIR)
    ]


def _batch_error(model: Model, trial: _Trial, closed: Sequence[str], in_file: bool) -> ModelError:
    node = trial.find_mixing_node()
    if node is not None:
        why = f"node {node.name!r} ({node.op}) gives other results for two images at once than for each alone"
    else:
        name = closed[0] if closed else outputs(model)[0].name
        last = read(model).producers.get(name)
        maker = f" of node {last.name!r} ({last.op})" if last is not None else ""
        why = f"output {name!r}{maker} has no dimension for the batch"
    return ModelError(
        f"model {str(model.path)!r} takes one image at a time in this precision",
        why=why + (", though the file has an open batch: sizes were fixed to fold and quantize it" * in_file),
        where=str(model.path),
        fix="leave batch out of its stages"
        + (
            ", or precision: fp16 or fp32"
            if in_file
            else ", or export the model so that this node uses the batch size of its input"
        ),
    )
