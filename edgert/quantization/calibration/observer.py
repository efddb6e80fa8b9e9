"""What values the tensors of a model take, counted image by image."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, TensorSpec, read, write
from edgert.graph.operators import REORDERS, about
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import cut
from edgert.quantization.prepare import calibrated

# Tensors that need no counting of their own: their values are those of others, in another order.
#
# A Reshape or Transpose has the histogram of what it moves, a Concat the sum of its inputs' histograms; exactly so,
# as a histogram depends on nothing but how often each value occurs.

MOST_PARTS = 64
"""A tensor of more parts is counted itself: adding up histograms costs what counting 10,000 values does."""


def parts(graph: Graph, wanted: Iterable[str], countable: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Wanted tensor → the countable tensors that together hold its values, itself where there are no others.

    A tensor stands in its parts as often as its values occur in the wanted one.
    """
    found: dict[str, tuple[str, ...]] = {}
    usable = frozenset(countable)
    for node in graph.nodes:  # in order, so that what a node reads has been resolved before it
        moved = node.inputs[:1] if node.op in REORDERS else node.inputs if about(node.op).kind == "join" else ()
        pieces = tuple(part for name in moved for part in found.get(name, (name,)))
        if 0 < len(pieces) <= MOST_PARTS and not node.domain and usable.issuperset(moved):
            found[node.outputs[0]] = pieces
    return {name: found.get(name, (name,)) for name in wanted}


def assemble(counted: Mapping[str, Histogram], made_of: Mapping[str, tuple[str, ...]]) -> dict[str, Histogram]:
    """The histogram of each tensor in ``made_of`` from those of its parts. Tensors of one part share it."""
    return {
        name: counted[found[0]] if len(found) == 1 else Histogram.merged([counted[part] for part in found])
        for name, found in made_of.items()
    }


Feeds = Mapping[str, Array]
"""Input name → array, one image."""
Image = tuple[str, Feeds]
"""What to call it in messages, and what to feed."""
Counts = Mapping[str, Histogram]

SLICE_BYTES = 2**24
"""What one slice may compute. Small enough to be counted while it is in a processor's last-level cache, large enough
that the calls cost nothing beside the work."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One slice, ready to run: ``counted`` of what it makes is wanted, ``dead`` is not needed behind it."""

    function: Function
    counted: tuple[str, ...]
    dead: tuple[str, ...]


class Observer:
    """Runs a prepared model once per image and counts its tensors' values.

    The graph runs in slices, so that one slice's tensors are in memory at a time, with what later slices read. Every
    node computes exactly what the ONNX standard defines (no fusion), on one thread, one image at a time: so values, and
    with them counts, depend on the image and the machine's instructions alone, not on slices, threads, or what ran
    before. Can be pickled, and used from several threads at once.

    Args:
        model: a prepared model.
        tensors: float32 tensors that ranges are wanted of; by default all of
            :func:`~edgert.quantization.prepare.calibrated`.
        slice_bytes: limit of what one slice computes.

    Attributes:
        model: the prepared model.
        tensors: those wanted.
        parts: wanted tensor → the tensors that are counted for it, whose histograms add up to its own
            (:func:`~edgert.quantization.calibration.observer.assemble`).
        counted: tensors that are counted.

    Raises:
        CalibrationError: a wanted tensor is not one that can be counted.
        BuildError: ONNX Runtime cannot take the model.
    """

    def __init__(self, model: Model, tensors: Iterable[str] | None = None, *, slice_bytes: int = SLICE_BYTES) -> None:
        graph = read(model)
        known = calibrated(graph)
        self.model = model
        self.tensors = known if tensors is None else _checked(tensors, known, model)
        self.parts = parts(graph, self.tensors, known)
        self.counted = tuple(dict.fromkeys(part for found in self.parts.values() for part in found))
        self._slice_bytes = slice_bytes
        self._inputs = graph.inputs
        self._fed = tuple(spec.name for spec in graph.inputs if spec.name in self.counted)
        self._steps = _steps(graph, model, frozenset(self.counted).difference(self._fed), slice_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.model, self.tensors, self._slice_bytes)

    def count(self, images: Iterable[Image]) -> dict[str, Histogram]:
        """New histograms of the counted tensors over some images.

        Args:
            images: each input as float32 (or the model's own type), of the model's shape exactly.

        Raises:
            CalibrationError: an array is missing or does not fit; NaN or infinity in a tensor; image and tensor are
                named.
            BuildError: ONNX Runtime fails.
        """
        histograms = {name: Histogram() for name in self.counted}
        for name, feeds in images:
            self._observe(name, feeds, histograms)
        return histograms

    def _observe(self, image: str, feeds: Feeds, histograms: Mapping[str, Histogram]) -> None:
        live = {spec.name: _fitting(spec, feeds, image) for spec in self._inputs}
        for name in self._fed:
            _add(histograms[name], live[name], name, image)
        for step in self._steps:
            live.update(step.function(live))
            for name in step.counted:
                _add(histograms[name], live[name], name, image)
            for name in step.dead:
                live.pop(name, None)


def _restored(model: Model, tensors: Sequence[str], slice_bytes: int) -> Observer:
    return Observer(model, tensors, slice_bytes=slice_bytes)


def _checked(tensors: Iterable[str], known: Sequence[str], model: Model) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(tensors))
    strange = [name for name in wanted if name not in known]
    if strange:
        raise CalibrationError(
            f"tensor {strange[0]!r} of model {str(model.path)!r} cannot be calibrated",
            why="it is no float32 tensor of the prepared model that depends on the images",
            fix="name tensors of the model that prepare() gives",
        )
    return wanted


def _steps(graph: Graph, model: Model, wanted: frozenset[str], slice_bytes: int) -> tuple[_Step, ...]:
    found = []
    for part in cut(graph, wanted, slice_bytes) if wanted else ():
        function = Function(write(part.graph, model), fused=False)
        found.append(_Step(function, tuple(name for name in part.made if name in wanted), part.dead))
    return tuple(found)


def _fitting(spec: TensorSpec, feeds: Feeds, image: str) -> Array:
    """The array for an input. Raises CalibrationError when there is none, or one of another shape or type."""
    array = feeds.get(spec.name)
    if array is None:
        why = f"it has {', '.join(feeds) or 'nothing'}"
        raise CalibrationError(f"image {image!r} has nothing for input {spec.name!r}", why=why, fix=_NAME_INPUTS)
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise CalibrationError(
            f"image {image!r} does not fit input {spec.name!r}",
            why=f"it is {array.dtype.name}{list(array.shape)}; the model takes {spec}",
            fix="preprocess it to that size and type, one image per run",
        )
    return array


_NAME_INPUTS = "give a mapping from the model's input names to arrays"


def _add(histogram: Histogram, array: Array, tensor: str, image: str) -> None:
    try:
        histogram.add(array)
    except CalibrationError as error:
        raise CalibrationError(
            f"tensor {tensor!r} cannot be counted for image {image!r}",
            why=str(error.what),
            fix="check the preprocessing (mean, std) and the image; a float model that overflows has no INT8 ranges",
        ) from error
