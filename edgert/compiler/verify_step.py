"""Every form of a model held to the model as it was before any rewriting: the last step of a build for one model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgert.compiler.model_job import COMPARED_IMAGES, MODEL, ModelJob, software
from edgert.compiler.model_steps import NEGLIGIBLE, random_feeds
from edgert.compiler.precision_steps import QUALITY
from edgert.errors import BuildError
from edgert.steps import Product, Report, Step, to_json

if TYPE_CHECKING:
    from edgert.backend.base import Array

TOLERANCE: Mapping[str, float] = {"float": 1e-3, "fp16": 2e-2, "ort": 0.7, "gpu": 0.7, "dla": 0.7}
"""Form → how far its outputs may be from the reference: the root of the mean squared difference over that of the
reference, over all outputs and images. Of INT8 only noise of at most half the power of the signal is required
(3 dB): YOLOX-nano for the DLA, calibrated on 16 photos, has 0.43, while outputs that have nothing to do with the
reference have 1.0 and more. It is a check of the build, not of accuracy, which ``accuracy:`` holds to labels."""


def verify_step(job: ModelJob, shaped: Product, forms: Mapping[str, Product], judged: bool) -> Step:
    """Promises outputs within :data:`TOLERANCE` of the reference, the model as it was before any rewriting.

    Args:
        shaped: the reference.
        forms: name → the form.
        judged: whether labels decide instead; then what is beyond the tolerance is only reported.
    """
    parts = {name: form.digest for name, form in forms.items()}
    facts = [shaped.digest, parts, job.images_digest, job.seen(), dict(TOLERANCE), judged, software()]

    def make(report: Report) -> Mapping[str, bytes]:
        feeds = list(_feeds(job, shaped.files[MODEL]))
        expected = _outputs(job, shaped.files[MODEL], feeds, fused=True)
        found = {}
        for name, form in forms.items():
            fused = name in ("float", "fp16", "ort")  # TensorRT's forms: every Q/DQ pair as the standard defines it
            made = _outputs(job, form.files[MODEL], feeds, fused)
            found[name] = {"tolerance": TOLERANCE[name], **distance(expected, made)}
        return {QUALITY: to_json({"images": len(feeds), "forms": found})}

    def promise(files: Mapping[str, bytes]) -> str:
        parts = []
        for name, row in Product(files).json(QUALITY)["forms"].items():
            error = row["relative_error"]
            if not judged and (error is None or error > TOLERANCE[name]):
                raise _too_far(job, name, error)
            parts.append(f"{name} {error:.2g}" if error is not None else f"{name} not finite")
        return "relative error " + ", ".join(parts)

    return Step("verify", job.name, 1, facts, make, promise)


def _feeds(job: ModelJob, reference: bytes) -> Iterator[Mapping[str, Array]]:
    """A few images as the pipeline would feed them; numbers for a model that takes something else."""
    from edgert.dataset import feed_of
    from edgert.graph import inputs

    model = job.model(reference)
    specs = inputs(model)
    if len(specs) != 1 or len(specs[0].shape) != 4:
        yield from random_feeds(job, reference, COMPARED_IMAGES)
        return
    feed = feed_of(job.images, model, job.config)
    for index in range(min(COMPARED_IMAGES, len(feed))):
        yield feed.feeds(index)


def _outputs(
    job: ModelJob, content: bytes, feeds: Sequence[Mapping[str, Array]], fused: bool
) -> list[Mapping[str, Array]]:
    from edgert.backend.ort import Function

    function = Function(job.model(content), fused=fused)
    return [function(feed) for feed in feeds]


def distance(wanted: Sequence[Mapping[str, Array]], made: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Relative error over everything and output by output; None where numbers are not finite or shapes differ."""
    sums = {
        name: [_sums(one[name], other.get(name)) for one, other in zip(wanted, made, strict=True)] for name in wanted[0]
    }
    outputs = {name: _relative([sum(part) for part in zip(*pairs, strict=True)]) for name, pairs in sums.items()}
    everything = [sum(part) for part in zip(*(pair for pairs in sums.values() for pair in pairs), strict=True)]
    return {"relative_error": _relative(everything), "outputs": outputs}


def _sums(wanted: Array, made: Array | None) -> tuple[float, float]:
    """Σ x² and Σ (x - y)² over what is finite in the reference; 0 for differences that are next to nothing."""
    import numpy as np

    if made is None or made.shape != wanted.shape:
        return 0.0, math.inf
    known = np.isfinite(wanted)
    first, second = wanted[known].astype(np.float64), made[known].astype(np.float64)
    noise = float(np.square(first - second).sum())
    return float(np.square(first).sum()), noise if noise > first.size * NEGLIGIBLE**2 else 0.0


def _relative(sums: Sequence[float]) -> float | None:
    signal, noise = sums
    error = math.sqrt(noise / signal) if signal else math.sqrt(noise)
    return float(f"{error:.6g}") if math.isfinite(error) else None


def _too_far(job: ModelJob, form: str, error: float | None) -> BuildError:
    return BuildError(
        f"the {form} form of model {job.name!r} does not compute what the model does",
        why=f"relative error {'that is not finite' if error is None else f'{error:.2g}'}, "
        f"at most {TOLERANCE[form]:g} is accepted",
        where=job.where,
        fix="calibrate on images like those it will see; name layers in quantize: {keep: …}; or set accuracy: with "
        "labels, which then decide",
    )
