"""Quantization of a prepared float model with its ranges to INT8, step by step.

Order matters: equalization comes before ranges are measured (:func:`equalized`), the choice of thresholds before
AdaRound. Bias correction is last, as its measured means include what everything before left over.
"""

import fnmatch
import platform
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dla import Target as Dla
from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.errors import CalibrationError, nearest
from edgert.graph import Graph, Model, Node, extract, read, write
from edgert.quantization.adaround import roundings
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.threshold import METHODS
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import THREADS, Feeds, check_stop, walk
from edgert.quantization.equalization import equalize
from edgert.quantization.lowering import lower as lowering
from edgert.quantization.lowering.lower import Activation, Storage, lower
from edgert.quantization.lowering.weights import LIMIT, Rounding, along_axis, integer_weight, kernel_of
from edgert.quantization.quantization_error import OutputNoise, correct_biases
from edgert.quantization.run import ALONE, Run
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import USUAL_DLA, Scheme, Target

# Method ``auto``: for each scale, the threshold whose rounding changes the outputs of the following nodes least.

DEFAULT = "mse"
"""The method where several tie, and where no weighted node reads a tensor: then only its own error counts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The effect of each method on the tensors of one scale.

    Attributes:
        tensors: those that share the scale.
        method: the one chosen.
        thresholds: method → amax.
        errors: method → squared error per element at the outputs of the weighted nodes that read a tensor, relative to
            the squared outputs. Empty without such nodes.
    """

    tensors: tuple[str, ...]
    method: str
    thresholds: Mapping[str, float]
    errors: Mapping[str, float]


def choices(
    graph: Graph,
    scheme: Scheme,
    table: RangeTable,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> tuple[Choice, ...]:
    """Choose the method of every scale, and return it with the errors that decided it.

    A tensor is rounded with each threshold in turn while everything else stays float. The graph runs once per image,
    and each weighted node once more per image and threshold.

    Args:
        graph: the float graph that the scheme was made for.
        scheme: which tensors are rounded, and which share a scale.
        table: their measured ranges.
        feeds: a few images.
        like: the model that the graph was read from.
        stop: ends it when set.

    Raises:
        CalibrationError: there are no images, or the table lacks a tensor; stopped.
        BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("methods cannot be chosen by output error without images", why="0 given")
    tables = {method: table.with_method(method) for method in METHODS}
    groups = dict.fromkeys(group for group in scheme.groups.values() if any(name in scheme.needed for name in group))
    thresholds = {group: {method: tables[method].amax(group) for method in METHODS} for group in groups}
    totals = {group: Counter[str]() for group in groups}
    readers = _readers(graph, scheme, thresholds)
    with ThreadPoolExecutor(THREADS) as pool:
        for name, values in zip(readers, walk(graph, list(readers), feeds, like, stop=stop), strict=True):
            group = scheme.groups[name]
            for node in readers[name]:
                # Without its bias the node is linear: the error of its input becomes the error of its output.
                alone = replace(graph, nodes=(replace(node, inputs=node.inputs[:2]),))
                linear = Function(write(extract(alone, node.outputs[:1], [name]), like), fused=False)
                for errors in pool.map(partial(_errors, linear, name, thresholds[group]), values):
                    totals[group].update(errors)
    found = []
    for group in groups:
        errors = totals[group] if any(totals[group].values()) else {}
        best = min(METHODS, key=lambda method: (errors.get(method, 0.0), method != DEFAULT))
        found.append(Choice(group, best, thresholds[group], dict(errors)))
    return tuple(found)


def _readers(graph: Graph, scheme: Scheme, groups: Mapping[tuple[str, ...], object]) -> Mapping[str, list[Node]]:
    """Return tensor → the weighted nodes that read it rounded, both in graph order."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if not node.inputs or kernel_of(graph, node) is None:
            continue
        name = node.inputs[0]
        point = scheme.points.get(name)
        if point is not None and node.name in point.readers and scheme.groups[name] in groups:
            found.setdefault(name, []).append(node)
    return found


def _errors(function: Function, name: str, thresholds: Mapping[str, float], values: Array) -> Mapping[str, float]:
    """Return method → error of the node's output for one image, relative to the output's own square."""

    def power(array: Array) -> float:
        (output,) = function({name: array}).values()
        return float(np.square(output, dtype=np.float64).sum())

    signal = power(values) or 1.0
    found = {}
    for amax in set(thresholds.values()):
        scale = np.float32(amax) / np.float32(LIMIT)
        found[amax] = power(np.clip(np.rint(values / scale), -LIMIT, LIMIT) * scale - values) / signal
    return {method: found[amax] for method, amax in thresholds.items()}


# From ranges to a model, step by step.


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for the conversion of a model to INT8.

    Attributes:
        target: who runs it.
        keep: units that stay in higher precision, by name or glob.
        choose: find each threshold anew, by the method that leaves the least error in what reads the tensor.
        correct_bias: take off each bias what rounding adds to its channel's mean.
        adaround: units, by name or glob, whose weights are rounded so that the layer's output is closest.
        storage, activation, per_channel: as :func:`~edgert.quantization.lowering.lower.lower` takes them.
        dla: whose rules hold, for target ``dla``.
    """

    target: Target = "ort"
    keep: tuple[str, ...] = ()
    choose: bool = False
    correct_bias: bool = True
    adaround: tuple[str, ...] = ()
    storage: Storage = "int8"
    activation: Activation = "symmetric"
    per_channel: bool = True
    dla: Dla = USUAL_DLA


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """An INT8 model and what it was made of.

    Attributes:
        model: ready to run on the recipe's target.
        graph: the same numbers as records, tensor by tensor comparable with the float graph: without the channels of
            zeros that ONNX Runtime's fast kernels get.
        scheme: what is INT8 in it.
        notes: what was done, one line a step, for people.
    """

    model: Model
    graph: Graph
    scheme: Scheme
    notes: tuple[str, ...] = ()


class Quantizer:
    """A maker of INT8 models of one float model; work that does not depend on the units kept is done once.

    Args:
        model: prepared, and the one the ranges were measured on.
        table: the ranges.
        recipe: how models become INT8.
        feeds: images to measure on, 16 or more; needed for everything but plain rounding.
        run: its log is called with each step, its event stops the work with CalibrationError.
        more: measures further tensors, name → values; called at most once, when units kept make the table lack some.
        whole: the scheme of the model for the recipe's target with nothing kept, from callers that have it.

    Raises:
        CalibrationError: the table is of another model; a glob of the recipe matches no unit.
    """

    def __init__(
        self,
        model: Model,
        table: RangeTable,
        recipe: Recipe,
        feeds: Sequence[Feeds] = (),
        run: Run = ALONE,
        more: Callable[[], Mapping[str, Histogram]] | None = None,
        whole: Scheme | None = None,
    ) -> None:
        if table.model != model.digest:
            raise CalibrationError(
                "these ranges belong to another model",
                why=f"they were measured on {table.model[:12]}…, this is {model.digest[:12]}…",
                where=str(model.path),
                fix="calibrate this model",
            )
        self.model, self.recipe, self.feeds, self.stop = model, recipe, feeds, run.stop
        self.graph = read(model)
        self._log, self._more = run.log, more
        self._whole = whole or scheme(self.graph, recipe.target, dla=recipe.dla)
        self._latest: tuple[Scheme, Mapping[str, Array], Graph] | None = None
        self.units = tuple(unit.name for unit in self._whole.units)
        self.keep = frozenset(matching(recipe.keep, self.units, "keep"))
        self._plan = self._planned(self.keep)
        self.table = table
        if recipe.choose:
            self._log("choosing thresholds by output error")
            found = choices(self.graph, self._plan, table, feeds, model, stop=run.stop)
            self.table = table.with_chosen({name: one.method for one in found for name in one.tensors})

    def quick(self, keep: Collection[str] = ()) -> Quantized:
        """Return the model by plain rounding alone: for comparing which units to keep."""
        plan = self.scheme(keep)
        return self._quantized(self.graph, plan, {}, self.lowered(self.graph, plan), ())

    def finish(self, keep: Collection[str] = (), *, correct: bool = True) -> Quantized:
        """Return the model with all the recipe asks for, in minutes for a large one; ``correct`` False skips biases."""
        plan, graph, notes = self.scheme(keep), self.graph, []
        if self._latest is None or self._latest[0] is not plan:  # biases aside, the latest form is made once
            rounded = self._rounded(plan)
            self._latest = plan, rounded, self.lowered(graph, plan, rounded)
        _, rounded, made = self._latest
        if rounded:
            notes.append(f"AdaRound: the weights of {len(rounded)} nodes")
        if correct and self.corrects:
            self._log("correcting biases")
            graph = correct_biases(graph, made, self.feeds, self.model, stop=self.stop)
            stored: Mapping[str, Rounding] = {}
            if plan.target == "ort":
                how = self.recipe
                stored = lowering.roundings(graph, plan, self.table.amax, how.storage, how.activation, self.table.span)
            made = lowering.with_biases(made, self.graph, graph, plan, stored, self.recipe.per_channel, rounded)
            notes.append(f"bias correction over {len(self.feeds)} images")
        return self._quantized(graph, plan, rounded, made, tuple(notes))

    @property
    def corrects(self) -> bool:
        """Whether biases can be corrected, and should be."""
        return self.recipe.correct_bias and bool(self.feeds)

    def scheme(self, keep: Collection[str] = ()) -> Scheme:
        """Return what is INT8 when these units, and those of the recipe, are kept."""
        check_stop(self.stop)
        kept = self.keep | set(keep)
        plan = self._plan if kept == self.keep else self._planned(kept)
        if self._more is not None and not self.table.histograms.keys() >= set(plan.needed):
            self.table = replace(self.table, histograms={**self._more(), **self.table.histograms})
            self._more = None
        return plan

    def _planned(self, keep: frozenset[str]) -> Scheme:
        return scheme(self.graph, self.recipe.target, keep, self.recipe.dla, self._whole)

    def lowered(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array] | None = None, *, aligned: bool = False
    ) -> Graph:
        """Return a graph of the model's shape in INT8."""
        return lower(
            graph,
            plan,
            self.table.amax,
            storage=self.recipe.storage,
            activation=self.recipe.activation,
            per_channel=self.recipe.per_channel,
            aligned=aligned,
            rounded=rounded or {},
            span=self.table.span,
        )

    def _quantized(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array], made: Graph, notes: tuple[str, ...]
    ) -> Quantized:
        fast = made
        if plan.target == "ort" and lowering.align(graph, rounded)[0] is not graph:
            fast = self.lowered(graph, plan, rounded, aligned=True)
        return Quantized(write(fast, self.model), made, plan, notes)

    def _rounded(self, plan: Scheme) -> Mapping[str, Array]:
        nodes = matching(self.recipe.adaround, [name for name in self.units if name in plan.weighted], "adaround")
        if not nodes:
            return {}
        self._log(f"AdaRound of {len(nodes)} nodes")
        grids = {}
        for node in (node for node in self.graph.nodes if node.name in nodes):
            plain = integer_weight(self.graph, node, self.recipe.per_channel, {})
            grids[node.inputs[1]] = along_axis(plain.scales, plain.axis, plain.values.ndim)
        coarse = self.lowered(self.graph, plan)
        return roundings(self.graph, coarse, grids, self.feeds, self.model, stop=self.stop)


def rounding_noise(quantizer: Quantizer, feeds: Sequence[Feeds]) -> Callable[[frozenset[str]], float]:
    """Return a function: units kept → noise of the outputs with the others rounded, nothing corrected.

    Raises:
        BuildError: ONNX Runtime cannot run the model.
    """
    noise, fused = OutputNoise(quantizer.model, feeds, quantizer.stop), quantizer.recipe.target == "ort"

    def measure(kept: frozenset[str]) -> float:
        if not quantizer.scheme(kept).units:
            return 0.0
        return noise.of(Function(quantizer.quick(kept).model, fused=fused))

    return measure


def equalized(model: Model) -> Model:
    """Return a prepared model with cross-layer equalization of its weights; it computes the same up to rounding."""
    return write(equalize(read(model)), model)


def for_this_machine(recipe: Recipe) -> Recipe:
    """Return the recipe with the activation type that this processor multiplies fastest.

    That is uint8 by int8 on x86, int8 by int8 on Arm.
    """
    x86 = platform.machine() in ("x86_64", "AMD64", "i686")
    return replace(recipe, storage="uint8" if x86 else "int8")


def matching(globs: Collection[str], names: Collection[str], where: str) -> tuple[str, ...]:
    """Return the names that any of the globs matches, in their order.

    Raises:
        CalibrationError: a glob matches no name.
    """
    for glob in globs:
        if glob not in names and not fnmatch.filter(names, glob):
            raise CalibrationError(
                f"no unit matches {glob!r}{nearest(glob, names)}",
                where=where,
                fix=f"units are named by their main node, like {next(iter(names), 'none')!r}",
            )
    return tuple(name for name in names if any(name == glob or fnmatch.fnmatchcase(name, glob) for glob in globs))
