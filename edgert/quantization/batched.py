"""Open batch dimension of an INT8 model, and the check that each image gives the same result as alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.backend.ort import Function
from edgert.errors import BuildError, ModelError
from edgert.graph import Model, TensorSpec, inputs, read
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

    Two images in one batch are compared with each image alone. Every node runs as the ONNX standard defines it. The
    model is static and clean; feeds are of batch 1, and noise replaces missing ones. An error mentions ``file``, of
    which the model was made, if that accepts several images. Raises ModelError: the model accepts one image only, or
    mixes images.
    """
    if any(spec.shape[:1] != (1,) for spec in inputs(model)):
        return model
    made, pair = with_open_batch(model), [*feeds, *_noise(inputs(model))][:PAIR]
    why = _why_mixed(model, made, pair)
    if why and file is not None and accepts_several(file, pair):
        why, fix = f"{why}, though the file has an open batch: sizes were fixed to fold and quantize it", _OTHERWISE
    else:
        fix = "export the model so that every node uses the batch size of its input"
    if why:
        what = f"model {str(model.path)!r} takes one image at a time in this precision"
        raise ModelError(what, why=why, where=str(model.path), fix=f"leave batch out of its stages, or {fix}")
    return made


_OTHERWISE = "precision: fp16 or fp32"


def accepts_several(model: Model, feeds: Sequence[Feeds]) -> bool:
    """Return whether a model has an open batch and gives the same for two images, of batch 1, at once as for each."""
    return has_open_batch(model) and not _why_mixed(model, model, feeds[:PAIR])


def _why_mixed(model: Model, opened: Model, feeds: Sequence[Feeds]) -> str:
    """Return why a model with an open batch gives other results for two images at once; empty if it does not."""
    producers = read(opened).producers
    try:
        alone = [Function(model, fused=False)(feed) for feed in feeds]
        both = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
        together = Function(opened, fused=False)(both)
    except BuildError as error:  # sizes do not fit two images
        return error.why
    for name, found in together.items():
        maker = producers.get(name)
        which = f"output {name!r}" + (f" of node {maker.name!r} ({maker.op})" if maker else "")
        rows = np.concatenate([results[name] for results in alone]) if found.ndim else found
        if found.shape[:1] != (len(feeds),) or rows.shape != found.shape:
            return f"{which} has no dimension for the batch"
        if not _agree(rows, found):
            return f"{which} differs between two images at once and each alone"
    return ""


def _agree(rows: Array, both: Array) -> bool:
    if rows.dtype.kind not in "fiu":
        return bool(np.array_equal(rows, both))
    known = np.isfinite(rows)
    first, second = rows[known].astype(np.float64), both[known].astype(np.float64)
    return bool(np.linalg.norm(first - second) <= TOLERANCE * np.linalg.norm(first))


def _noise(specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    random = np.random.default_rng(0)
    shapes = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in specs}
    return [
        {spec.name: random.uniform(0, 1, shapes[spec.name]).astype(spec.dtype) for spec in specs} for _ in range(PAIR)
    ]
