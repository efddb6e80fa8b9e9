"""Outputs of one row of numbers per image: scores of classes, or a vector to compare with others."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from edgert.errors import ConfigError
from edgert.runtime.records import Attributes, Classification, Embedding
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size, as_f32, check_labels, shapes_of, sigmoid
from edgert.stages.decode.detection import strongest
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.gallery import gallery_at

_USUAL = (64, 128, 192, 256, 384, 512, 768, 1024, 1280, 2048)
_NAMES = ("embed", "feat", "descriptor", "pooler_output", "hidden_state")
"""Words in the names that exporters give to embeddings."""
_LEAST_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Embed:
    """The first output as one vector, copied; with ``l2``, scaled to length 1 (a vector of zeros is unchanged).

    Of a transformer's hidden state [tokens, length] it is the first token, which describes the image in ViT and DINOv2.
    """

    embed: Literal["l2", "none"] = "l2"
    match: Path | None = None
    threshold: float = 0.5

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        length, is_named = signature.vector, any(word in signature.names for word in _NAMES)
        tokens, width = signature.table or (0, 0)
        if length is not None and is_named and _LEAST_WIDTH <= length <= 4096:
            yield Fit(f"{length} numbers, named as those of an embedding", 4)
        elif _is_tokens((tokens, width)) and "hidden_state" in signature.names:
            yield Fit(f"[{tokens}, {width}] is a hidden state, whose first token describes the image", 5)
        elif length is not None:
            yield Fit(f"{length} numbers, a usual length of an embedding", 3 if length in _USUAL else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        if not shapes or not _is_row(shapes[0]):
            raise wrong_shapes(f"embed: {self.embed}", "one output [length] or [tokens, length]", shapes, network)
        if self.match is not None:
            gallery_at(self.match).check(shapes[0][1] if _is_tokens(shapes[0]) else math.prod(shapes[0]))

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Embedding:
        if not outputs or not _is_row(outputs[0].shape):
            self.check(shapes_of(outputs), geometry.network)
        row = outputs[0][0] if _is_tokens(outputs[0].shape) else outputs[0]
        vector = row.reshape(-1).astype(np.float32)
        length = float(np.linalg.norm(vector)) if self.embed == "l2" else 1.0
        if length > 0:
            vector /= length
        if self.match is None:
            return Embedding(vector)
        name, similarity = gallery_at(self.match).match(vector)
        return Embedding(vector, name if similarity >= self.threshold else "", similarity)


def _is_row(shape: tuple[int, ...]) -> bool:
    return sum(size != 1 for size in shape) <= 1 or _is_tokens(shape)


def _is_tokens(shape: tuple[int, ...]) -> bool:
    """Return whether an output is a hidden state [tokens, length]."""
    return len(shape) == 2 and shape[0] > 1 and shape[1] >= _LEAST_WIDTH


_SUM_TOLERANCE = 0.02
"""Largest distance of a sum of probabilities from 1, after a thousand of them were rounded to fp16 or INT8."""


@dataclass(frozen=True, slots=True)
class Classify:
    """The first output, [C] or with dimensions of 1 around it, as probabilities.

    A single number is the probability of the only class; a logit, or by ``auto`` one outside of 0-1, passes a sigmoid.

    Attributes:
        classify: whether the network includes its softmax; ``auto`` tests whether the numbers are a distribution.
        top: number of classes to report.
        labels: names of the classes.
    """

    classify: Literal["auto", "softmax", "logits"] = "auto"
    top: int = 5
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        length = signature.vector
        if length is not None:
            reason = f"{length} numbers, one per class" if length > 1 else "one number, of the only class"
            yield Fit(reason, 3 if length in (1000, 1001) else 2, length)

    def check(self, shapes: Shapes, network: Size) -> None:
        _check_row(f"classify: {self.classify}", shapes, network, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Classification:
        """Return the ``top`` best classes, or all if there are fewer, without those whose probability is NaN."""
        self.check(shapes_of(outputs), geometry.network)
        values = as_f32(outputs[0]).reshape(-1)
        is_final = self.classify == "softmax"
        if self.classify == "auto":
            is_final = float(np.min(values)) >= 0 and abs(float(values.sum()) - 1) <= _SUM_TOLERANCE
            is_final |= values.size == 1 and 0 <= float(values[0]) <= 1
        best = strongest(values, self.top)  # softmax keeps the order
        scores = values[best]
        if not is_final and values.size == 1:  # whose softmax is always 1
            scores = sigmoid(scores)
        elif not is_final:
            top = np.max(values)
            scores = np.exp(scores - top) / np.exp(values - top).sum()
        best, scores = best[scores == scores], scores[scores == scores]
        return Classification(scores, best.astype(np.int32), self.labels)


@dataclass(frozen=True, slots=True)
class MultiLabel:
    """The first output as one probability per class; several classes may apply.

    Attributes:
        top: maximum number of classes to report.
        score: lowest probability of a reported class.
        activation: ``sigmoid`` if the network does not include it; ``auto`` tests whether all numbers lie in 0–1.
        labels: names of the classes.
    """

    top: int = 5
    score: float = 0.5
    activation: Literal["auto", "sigmoid", "none"] = "auto"
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.vector is not None and signature.vector > 1:
            yield Fit(f"{signature.vector} numbers can be classes of which several are there", 1, signature.vector)

    def check(self, shapes: Shapes, network: Size) -> None:
        _check_row("classify: multilabel", shapes, network, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Classification:
        self.check(shapes_of(outputs), geometry.network)
        values = as_f32(outputs[0]).reshape(-1)
        is_final = self.activation == "none"
        if self.activation == "auto":
            is_final = float(values.min()) >= 0 and float(values.max()) <= 1
        best = strongest(values, self.top)  # the sigmoid keeps the order
        scores = values[best] if is_final else sigmoid(values[best])
        found = scores >= self.score
        return Classification(scores[found], best[found].astype(np.int32), self.labels)


@dataclass(frozen=True, slots=True)
class Heads:
    """Several outputs, each of them a row of class scores, or a single number that is reported unchanged.

    ``heads`` is name → labels, in the order of the model's outputs.
    """

    top: int = 1
    heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        counts = [math.prod(shape) for shape in signature.shapes if sum(size != 1 for size in shape) <= 1]
        typed = zip(counts, signature.dtypes, strict=False)
        has_indices = any(count > 1 and dtype in ("int32", "int64") for count, dtype in typed)
        if 1 < len(counts) == len(signature.shapes) and 0 not in counts and max(counts) > 1 and not has_indices:
            yield Fit(f"{len(counts)} rows of numbers, one per head", 3)

    def check(self, shapes: Shapes, network: Size) -> None:
        if len(shapes) < 2 or any(sum(size != 1 for size in shape) > 1 for shape in shapes):
            raise wrong_shapes("classify: heads", "several outputs, each [classes]", shapes, network)
        if self.heads and len(self.heads) != len(shapes):
            what = f"{len(self.heads)} heads are named, and the model has {len(shapes)}"
            raise ConfigError(what, fix="options: {heads: {NAME: [LABEL, ...]}} in the order of the model's outputs")
        for (name, labels), shape in zip(self.heads.items(), shapes, strict=False):
            check_labels(math.prod(shape), labels, f"head {name!r}")

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Attributes:
        self.check(shapes_of(outputs), geometry.network)
        named = self.heads or {str(number): () for number in range(len(outputs))}
        found: dict[str, Classification | float] = {}
        for output, (name, labels) in zip(outputs, named.items(), strict=True):
            is_number = output.size == 1
            found[name] = (
                float(output.reshape(-1)[0]) if is_number else Classify("auto", self.top, labels)([output], geometry)
            )
        return Attributes(found)


def _check_row(decoder: str, shapes: Shapes, network: Size, labels: tuple[str, ...]) -> None:
    if not shapes or sum(size != 1 for size in shapes[0]) > 1:
        raise wrong_shapes(decoder, "one output [classes]", shapes, network)
    check_labels(math.prod(shapes[0]), labels)
