"""Runs of a float graph slice by slice, to compare tensors of all images and to count their values.

Slices run one after another, and only tensors that cross a cut stay in memory. Every node computes exactly what the
ONNX standard defines (no fusion), on one thread, one image at a time.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError
from edgert.graph import Graph, Model, Node, TensorSpec, extract, read, write
from edgert.graph.operators import REORDERS, about
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.scheme.units import tensors_to_calibrate

Feeds = Mapping[str, Array]
"""Inputs of one image by name."""
Image = tuple[str, Feeds]
"""Name of an image, for messages, and its inputs."""

THREADS = 2
"""Number of images that :func:`walk` runs at a time, each on one thread."""
SLICE_BYTES = 2**24
"""Largest result of one slice of an :class:`Observer`: small enough to be counted while it is in the last-level cache,
and large enough to make the cost of a call negligible."""
MOST_PARTS = 64
"""Largest number of histograms that are added for one tensor; adding one costs as much as counting 10,000 values."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Nodes that run in one session call.

    Attributes:
        made: results, which are wanted or read by later slices.
        dead: tensors, of this or earlier slices, that nothing needs any more.
    """

    graph: Graph
    made: tuple[str, ...]
    dead: tuple[str, ...]


def slice_graph(graph: Graph, wanted: Collection[str], limit_bytes: int) -> tuple[Slice, ...]:
    """Return slices that compute all wanted tensors, each node once, in order.

    No slice has a result beyond ``limit_bytes``, but a single node may; tensors whose size depends on data count 0.
    """
    needed = extract(graph, wanted)
    uses = {name: position for position, node in enumerate(needed.nodes) for name in node.reads}
    groups: list[list[Node]] = [[]]
    filled_bytes, blocked = 0, -1
    for position, node in enumerate(needed.nodes):
        specs = {name: needed.specs.get(name) for name in node.outputs if name}
        static = [spec.shape for spec in specs.values() if spec is not None and spec.is_static]
        size_bytes = sum(_FLOAT_BYTES * math.prod(dim for dim in shape if isinstance(dim, int)) for shape in static)
        if filled_bytes + size_bytes > limit_bytes and filled_bytes and position > blocked:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(node)
        filled_bytes += size_bytes
        # a tensor of unknown type cannot cross a cut
        untyped = [name for name, spec in specs.items() if spec is None or spec.dtype == "unknown"]
        blocked = max([blocked, *(uses.get(name, -1) for name in untyped)])
    seen = {n: number for number, nodes in enumerate(groups) for node in nodes for n in node.outputs if n in wanted}
    return tuple(part for part in _slices(needed, groups, seen) if part.made)


def slice_at_targets(graph: Graph, targets: Sequence[str]) -> tuple[Slice, ...]:
    """Return one slice per target, in the order given; it is empty for a target that is available already.

    Upstream targets must come first, or the first slice computes all. Raises ModelError: nothing computes a target.
    """
    fed = {spec.name for spec in graph.inputs}
    needed = extract(graph, [name for name in targets if name not in fed])
    done: set[int] = set()
    groups = []
    for target in targets:
        found, waiting = set[int](), [target]
        while waiting:
            node = needed.producers.get(waiting.pop())
            if node is not None and id(node) not in found | done:
                found.add(id(node))
                waiting.extend(node.reads)
        groups.append([node for node in needed.nodes if id(node) in found])
        done |= found
    return tuple(_slices(needed, groups, {name: position for position, name in enumerate(targets)}))


def _slices(graph: Graph, groups: Sequence[Sequence[Node]], seen: Mapping[str, int]) -> Iterator[Slice]:
    """Yield one slice per group of nodes; ``seen`` has the last group after which each wanted tensor is needed."""
    uses = {name: number for number, nodes in enumerate(groups) for node in nodes for name in node.reads}
    live = {spec.name for spec in graph.inputs}
    for number, nodes in enumerate(groups):
        made = [
            name
            for node in nodes
            for name in node.outputs
            if name and (uses.get(name, -1) > number or seen.get(name, -1) >= number)
        ]
        part = extract(graph, made, sorted(live))
        live.update(made)
        dead = sorted(name for name in live if max(uses.get(name, -1), seen.get(name, -1)) <= number)
        live.difference_update(dead)
        yield Slice(part, tuple(made), tuple(dead))


def walk(
    graph: Graph, targets: Sequence[str], feeds: Sequence[Feeds], like: Model, *, stop: threading.Event | None = None
) -> Iterator[list[Array]]:
    """Yield the values of each target in turn, one array per image.

    All images run up to the first target, then up to the second, and so on. The caller may change a computed array in
    place before it requests the next target; later nodes then read the changed values. It must not change arrays of
    ``feeds``. Targets are in order, upstream ones first. Memory grows with the number of images and with what crosses a
    cut. Raises ModelError: nothing computes a target. Raises BuildError: ONNX Runtime cannot run a slice. Raises
    CalibrationError: ``stop`` was set.
    """
    if any(name not in graph.specs for node in graph.nodes for name in node.outputs if name):
        graph = read(write(graph, like))  # a rewrite left types out
    states = [dict(one) for one in feeds]
    function: Callable[[Feeds], Mapping[str, Array]]

    def run(state: Feeds) -> Mapping[str, Array]:
        check_stop(stop)
        return function(state)

    with ThreadPoolExecutor(THREADS) as pool:
        for target, piece in zip(targets, slice_at_targets(graph, targets), strict=True):
            if piece.made:
                function = Function(write(piece.graph, like), fused=False)
                for state, made in zip(states, pool.map(run, states), strict=True):
                    state.update(made)
            yield [state[target] for state in states]
            for state in states:
                for name in piece.dead:
                    state.pop(name, None)


def check_stop(stop: threading.Event | None) -> None:
    """Raise CalibrationError once ``stop`` is set."""
    if stop is not None and stop.is_set():
        raise CalibrationError("stopped while INT8 was made", fix="run it again")


def histogram_parts(graph: Graph, wanted: Iterable[str], countable: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each wanted tensor, the countable tensors that together hold its values, often the tensor itself.

    A Reshape or Transpose has the histogram of its input, a Concat the sum of the histograms of its inputs. A tensor is
    listed as often as its values occur.
    """
    found: dict[str, tuple[str, ...]] = {}
    usable = frozenset(countable)
    for node in graph.nodes:  # in order, so that what a node reads has been resolved before it
        moved = node.inputs[:1] if node.op in REORDERS else node.inputs if about(node.op).kind == "join" else ()
        held = tuple(part for name in moved for part in found.get(name, (name,)))
        if 0 < len(held) <= MOST_PARTS and not node.domain and usable.issuperset(moved):
            found[node.outputs[0]] = held
    return {name: found.get(name, (name,)) for name in wanted}


def assemble(counted: Mapping[str, Histogram], made_of: Mapping[str, tuple[str, ...]]) -> dict[str, Histogram]:
    """Return the histogram of each tensor in ``made_of`` from those of its parts, shared where there is one part."""
    return {
        name: counted[found[0]] if len(found) == 1 else Histogram.merged([counted[part] for part in found])
        for name, found in made_of.items()
    }


class Observer:
    """A prepared model that runs once per image and counts its tensors' values.

    The tensors of one slice are in memory at a time, with those that later slices read. Counts depend on the image and
    the machine's instructions only, not on slices, threads or earlier runs. An observer can be pickled, and used from
    several threads at once.

    Attributes:
        parts: counted tensors whose histograms add up to that of each measured one, by name (:func:`assemble`).

    Raises:
        CalibrationError: a tensor cannot be counted.
        BuildError: ONNX Runtime cannot run the model.
    """

    def __init__(self, model: Model, tensors: Iterable[str] | None = None) -> None:
        graph = read(model)
        known = tensors_to_calibrate(graph)
        self.model = model
        self.tensors = known if tensors is None else tuple(dict.fromkeys(tensors))
        for name in self.tensors:
            if name not in known:
                raise CalibrationError(
                    f"tensor {name!r} of model {str(model.path)!r} cannot be calibrated",
                    why="it is not a float32 tensor of the prepared model that depends on the images",
                    fix="name tensors of the model that prepare() gives",
                )
        self.parts = histogram_parts(graph, self.tensors, known)
        self.counted = tuple(dict.fromkeys(part for found in self.parts.values() for part in found))
        self._inputs = graph.inputs
        computed = frozenset(self.counted).difference(spec.name for spec in graph.inputs)
        slices = slice_graph(graph, computed, SLICE_BYTES) if computed else ()
        self._steps = [(Function(write(part.graph, model), fused=False), part) for part in slices]

    def __reduce__(self) -> tuple[Any, ...]:
        return Observer, (self.model, self.tensors)

    def count(self, images: Iterable[Image]) -> dict[str, Histogram]:
        """Return new histograms of the counted tensors over some images.

        Raises CalibrationError: an array is missing or does not fit, or a tensor has NaN or infinity. Raises
        BuildError: ONNX Runtime fails.
        """
        histograms = {name: Histogram() for name in self.counted}
        for name, feeds in images:
            self._observe(name, feeds, histograms)
        return histograms

    def _observe(self, image: str, feeds: Feeds, histograms: Mapping[str, Histogram]) -> None:
        live = {spec.name: _input_array(spec, feeds, image) for spec in self._inputs}
        _count_tensors(live, live, histograms, image)
        for function, part in self._steps:
            live.update(function(live))
            _count_tensors(part.made, live, histograms, image)
            for name in part.dead:
                live.pop(name, None)


def _input_array(spec: TensorSpec, feeds: Feeds, image: str) -> Array:
    """Return the array for an input; raise CalibrationError where it is missing, or of another shape or type."""
    array = feeds.get(spec.name)
    if array is None:
        raise CalibrationError(
            f"image {image!r} has nothing for input {spec.name!r}",
            why=f"it has {', '.join(feeds) or 'nothing'}",
            fix="give a mapping from the model's input names to arrays",
        )
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise CalibrationError(
            f"image {image!r} does not fit input {spec.name!r}",
            why=f"it is {array.dtype.name}{list(array.shape)}; the model takes {spec}",
            fix="preprocess it to that size and type, one image per run",
        )
    return array


def _count_tensors(names: Iterable[str], live: Feeds, histograms: Mapping[str, Histogram], image: str) -> None:
    """Add the values of the counted tensors among ``names`` to their histograms."""
    for name in names:
        if name in histograms:
            try:
                histograms[name].add(live[name])
            except CalibrationError as error:
                raise CalibrationError(
                    f"tensor {name!r} cannot be counted for image {image!r}",
                    why=str(error.what),
                    fix="check the preprocessing (mean, std) and the image; a float model that overflows has no INT8 "
                    "ranges",
                ) from error
