"""Quantization of a prepared float model and its ranges to INT8, step by step.

Order matters. Equalization comes before ranges are measured (:func:`equalize_model`), the choice of thresholds before
AdaRound. Bias correction is last, since the means it measures include the errors that all other steps leave.
"""

import fnmatch
import logging
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
from edgert.quantization.calibration import ranges, threshold, value_histogram
from edgert.quantization.calibration.walk import THREADS, Feeds, check_stop, walk
from edgert.quantization.equalization import equalize
from edgert.quantization.lowering import lower as lowering
from edgert.quantization.lowering.emulate import emulate_dla
from edgert.quantization.lowering.lower import Activation, Storage, lower
from edgert.quantization.lowering.weights import LIMIT, Rounding, along_axis, integer_weight, kernel_of
from edgert.quantization.quantization_error import OutputNoise, correct_biases
from edgert.quantization.run import DEFAULT_RUN, Run
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import USUAL_DLA, Scheme, Target

log = logging.getLogger("edgert.quantize")

DEFAULT = "mse"
"""Method where several are equally good, or no weighted node reads a tensor."""


def chosen_methods(
    graph: Graph,
    scheme: Scheme,
    table: ranges.RangeTable,
    feeds: Sequence[Feeds],
    like: Model,
    *,
    stop: threading.Event | None = None,
) -> Mapping[str, str]:
    """Return the method by tensor that method ``auto`` chooses; tensors of one scale have one method.

    Its threshold changes the outputs of the weighted nodes that read the tensors least: in squared error, relative to
    the squared outputs. A tensor is rounded with each threshold in turn while all else stays float. The graph runs once
    per image, and each weighted node once more per image and threshold. Raises CalibrationError: there are no images,
    the table lacks a tensor, or ``stop`` was set. Raises BuildError: ONNX Runtime cannot run the graph.
    """
    if not feeds:
        raise CalibrationError("methods cannot be chosen by output error without images", why="0 given")
    tables = {method: table.with_method(method) for method in threshold.METHODS}
    groups = dict.fromkeys(group for group in scheme.groups.values() if any(name in scheme.needed for name in group))
    thresholds = {group: {method: tables[method].amax(group) for method in threshold.METHODS} for group in groups}
    totals = {group: Counter[str]() for group in groups}
    readers = _readers(graph, scheme, thresholds)
    with ThreadPoolExecutor(THREADS) as pool:
        for name, values in zip(readers, walk(graph, list(readers), feeds, like, stop=stop), strict=True):
            group = scheme.groups[name]
            for node in readers[name]:
                # without its bias the node is linear: it maps the error of its input to the error of its output
                alone = replace(graph, nodes=(replace(node, inputs=node.inputs[:2]),))
                linear = Function(write(extract(alone, node.outputs[:1], [name]), like), fused=False)
                for errors in pool.map(partial(_method_errors, linear, name, thresholds[group]), values):
                    totals[group].update(errors)
    best = {
        group: min(threshold.METHODS, key=lambda method: (totals[group][method], method != DEFAULT)) for group in groups
    }
    return {name: method for group, method in best.items() for name in group}


def _readers(graph: Graph, scheme: Scheme, groups: Mapping[tuple[str, ...], object]) -> Mapping[str, list[Node]]:
    """Return the weighted nodes that read each tensor rounded, by tensor name, in graph order."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if not node.inputs or kernel_of(graph, node) is None:
            continue
        name = node.inputs[0]
        point = scheme.points.get(name)
        if point is not None and node.name in point.readers and scheme.groups[name] in groups:
            found.setdefault(name, []).append(node)
    return found


def _method_errors(
    function: Function, name: str, thresholds: Mapping[str, float], values: Array
) -> Mapping[str, float]:

    def power(array: Array) -> float:
        (output,) = function({name: array}).values()
        return float(np.square(output, dtype=np.float64).sum())

    signal = power(values) or 1.0
    found = {}
    for amax in set(thresholds.values()):
        scale = np.float32(amax) / np.float32(LIMIT)
        found[amax] = power(np.clip(np.rint(values / scale), -LIMIT, LIMIT) * scale - values) / signal
    return {method: found[amax] for method, amax in thresholds.items()}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for the conversion of a model to INT8.

    Attributes:
        choose: whether each threshold is chosen by the error at the nodes that read the tensor.
        correct_bias: whether each bias is corrected for the mean error that rounding adds to its channel.
        emulates_dla: whether the model is a float32 emulation of a DLA's publicly known arithmetic.
    """

    target: Target = "ort"
    keep: tuple[str, ...] = ()
    choose: bool = False
    correct_bias: bool = True
    adaround: tuple[str, ...] = ()
    storage: Storage = "int8"
    activation: Activation = "symmetric"
    dla: Dla = USUAL_DLA
    emulates_dla: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """An INT8 model.

    Attributes:
        graph: the same values as a graph that can be compared with the float graph tensor by tensor. It lacks the
            channels of zeros that are added for fast kernels of ONNX Runtime.
    """

    model: Model
    graph: Graph
    scheme: Scheme
    notes: tuple[str, ...] = ()


class Quantizer:
    """Quantizer of one float model, with any units kept in higher precision; shared work is done once.

    Args:
        feeds: images to measure on, 16 or more; only :meth:`round_only` needs none.
        more: function that measures missing tensors, by name; called at most once, when kept units change the scheme.
        whole: scheme for the recipe's target with no units kept, where the caller has it.

    Raises:
        CalibrationError: the table belongs to another model, or a glob of the recipe matches no unit.
    """

    def __init__(
        self,
        model: Model,
        table: ranges.RangeTable,
        recipe: Recipe,
        feeds: Sequence[Feeds] = (),
        run: Run = DEFAULT_RUN,
        more: Callable[[], Mapping[str, value_histogram.Histogram]] | None = None,
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
        self.keep = frozenset(match_names(recipe.keep, self.units, "keep"))
        self._plan = self._plan_for(self.keep)
        self.table = table
        if recipe.choose:
            self._log("choosing thresholds by output error")
            self.table = table.with_chosen(chosen_methods(self.graph, self._plan, table, feeds, model, stop=run.stop))

    def round_only(self, keep: Collection[str] = ()) -> Quantized:
        """Return the model with nearest rounding and no corrections, to compare which units to keep."""
        plan = self.scheme(keep)
        return self._to_quantized(self.graph, plan, {}, self.lower_graph(self.graph, plan), ())

    def finish(self, keep: Collection[str] = (), *, correct: bool = True) -> Quantized:
        """Return the model with all corrections of the recipe, but those of biases only with ``correct``.

        A large model takes minutes.
        """
        plan, graph, notes = self.scheme(keep), self.graph, []
        if self._latest is None or self._latest[0] is not plan:  # all but bias correction is done once per plan
            rounded = self._adaround(plan)
            self._latest = plan, rounded, self.lower_graph(graph, plan, rounded)
        _, rounded, made = self._latest
        if rounded:
            notes.append(f"AdaRound: the weights of {len(rounded)} nodes")
        if correct and self.corrects_biases:
            self._log("correcting biases")
            graph = correct_biases(graph, made, self.feeds, self.model, stop=self.stop)
            stored: Mapping[str, Rounding] = {}
            if plan.target == "ort":
                how = self.recipe
                stored = lowering.roundings(graph, plan, self.table.amax, how.storage, how.activation, self.table.span)
            made = lowering.with_biases(made, self.graph, graph, plan, stored, rounded)
            notes.append(f"bias correction over {len(self.feeds)} images")
        return self._to_quantized(graph, plan, rounded, made, tuple(notes))

    @property
    def corrects_biases(self) -> bool:
        """Whether the recipe asks for bias correction and there are images for it."""
        return self.recipe.correct_bias and bool(self.feeds)

    def scheme(self, keep: Collection[str] = ()) -> Scheme:
        """Return the scheme with these units, and those of the recipe, kept in higher precision."""
        check_stop(self.stop)
        kept = self.keep | set(keep)
        plan = self._plan if kept == self.keep else self._plan_for(kept)
        if self._more is not None and not self.table.histograms.keys() >= set(plan.needed):
            self.table = replace(self.table, histograms={**self._more(), **self.table.histograms})
            self._more = None
        return plan

    def _plan_for(self, keep: frozenset[str]) -> Scheme:
        return scheme(self.graph, self.recipe.target, keep, self.recipe.dla, self._whole)

    def lower_graph(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array] | None = None, *, aligned: bool = False
    ) -> Graph:
        """Return the INT8 form of the model's graph, or of a graph with the same nodes."""
        if self.recipe.emulates_dla:
            return emulate_dla(graph, plan, self.table.amax, rounded=rounded or {})
        return lower(
            graph,
            plan,
            self.table.amax,
            storage=self.recipe.storage,
            activation=self.recipe.activation,
            aligned=aligned,
            rounded=rounded or {},
            span=self.table.span,
        )

    def _to_quantized(
        self, graph: Graph, plan: Scheme, rounded: Mapping[str, Array], made: Graph, notes: tuple[str, ...]
    ) -> Quantized:
        fast = made
        if plan.target == "ort" and lowering.align_channels(graph, rounded)[0] is not graph:
            fast = self.lower_graph(graph, plan, rounded, aligned=True)
        return Quantized(write(fast, self.model), made, plan, notes)

    def _adaround(self, plan: Scheme) -> Mapping[str, Array]:
        nodes = match_names(self.recipe.adaround, [name for name in self.units if name in plan.weighted], "adaround")
        if not nodes:
            return {}
        self._log(f"AdaRound of {len(nodes)} nodes")
        grids = {}
        for node in (node for node in self.graph.nodes if node.name in nodes):
            plain = integer_weight(self.graph, node, {})
            grids[node.inputs[1]] = along_axis(plain.scales, plain.axis, plain.values.ndim)
        coarse = self.lower_graph(self.graph, plan)
        return roundings(self.graph, coarse, grids, self.feeds, self.model, stop=self.stop)


def rounding_noise(quantizer: Quantizer, feeds: Sequence[Feeds]) -> Callable[[frozenset[str]], float]:
    """Return a function from the units kept to the noise of the outputs with all others rounded, uncorrected.

    Raises BuildError: ONNX Runtime cannot run the model.
    """
    noise, fused = OutputNoise(quantizer.model, feeds, quantizer.stop), quantizer.recipe.target == "ort"

    def measure(kept: frozenset[str]) -> float:
        if not quantizer.scheme(kept).units:
            return 0.0
        return noise.measure(Function(quantizer.round_only(kept).model, fused=fused))

    return measure


def equalize_model(model: Model) -> Model:
    """Return a prepared model with weights equalized across layers; it computes the same up to rounding.

    Warn where there is nothing to equalize.
    """
    graph = read(model)
    equalized = equalize(graph)
    if equalized.nodes == graph.nodes:
        why = "only ReLU and operators like it may lie between two layers with weights"
        log.warning("%s: equalize: true changes nothing: %s", model.path, why)
    return write(equalized, model)


def for_this_machine(recipe: Recipe) -> Recipe:
    """Return the recipe with the activation type that this processor multiplies fastest: uint8 on x86, int8 on Arm."""
    x86 = platform.machine() in ("x86_64", "AMD64", "i686")
    return replace(recipe, storage="uint8" if x86 else "int8")


def match_names(globs: Collection[str], names: Collection[str], where: str) -> tuple[str, ...]:
    """Return the names that any of the globs matches, in order. Raises CalibrationError: a glob matches no name."""
    for glob in globs:
        if glob not in names and not fnmatch.filter(names, glob):
            raise CalibrationError(
                f"no unit matches {glob!r}{nearest(glob, names)}",
                where=where,
                fix=f"units are named by their main node, like {next(iter(names), 'none')!r}",
            )
    return tuple(name for name in names if any(name == glob or fnmatch.fnmatchcase(name, glob) for glob in globs))
