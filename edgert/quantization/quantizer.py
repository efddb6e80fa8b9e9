"""Quantization of a prepared float model with its ranges to INT8, step by step.

Bias correction is last, as its measured means include what everything before left over.
"""

import fnmatch
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dla import Target as Dla
from edgert.backend.ort import Function
from edgert.errors import CalibrationError, nearest
from edgert.graph import Graph, Model, read, write
from edgert.quantization.calibration.ranges import RangeTable
from edgert.quantization.calibration.value_histogram import Histogram
from edgert.quantization.calibration.walk import Feeds, check_stop
from edgert.quantization.lowering import lower as lowering
from edgert.quantization.lowering.lower import Activation, Storage, lower
from edgert.quantization.lowering.weights import Rounding
from edgert.quantization.quantization_error import OutputNoise, correct_biases
from edgert.quantization.run import ALONE, Run
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.units import USUAL_DLA, Scheme, Target

# From ranges to a model, step by step.


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings for the conversion of a model to INT8.

    Attributes:
        target: who runs it.
        keep: units that stay in higher precision, by name or glob.
        correct_bias: take off each bias what rounding adds to its channel's mean.
        storage, activation, per_channel: as :func:`~edgert.quantization.lowering.lower.lower` takes them.
        dla: whose rules hold, for target ``dla``.
    """

    target: Target = "ort"
    keep: tuple[str, ...] = ()
    correct_bias: bool = True
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
        self._latest: tuple[Scheme, Graph] | None = None
        self.units = tuple(unit.name for unit in self._whole.units)
        self.keep = frozenset(matching(recipe.keep, self.units, "keep"))
        self._plan = self._planned(self.keep)
        self.table = table

    def quick(self, keep: Collection[str] = ()) -> Quantized:
        """Return the model by plain rounding alone: for comparing which units to keep."""
        plan = self.scheme(keep)
        return self._quantized(self.graph, plan, self.lowered(self.graph, plan), ())

    def finish(self, keep: Collection[str] = (), *, correct: bool = True) -> Quantized:
        """Return the model with all the recipe asks for, in minutes for a large one; ``correct`` False skips biases."""
        plan, graph, notes = self.scheme(keep), self.graph, []
        if self._latest is None or self._latest[0] is not plan:  # biases aside, the latest form is made once
            self._latest = plan, self.lowered(graph, plan)
        made = self._latest[1]
        if correct and self.corrects:
            self._log("correcting biases")
            graph = correct_biases(graph, made, self.feeds, self.model, stop=self.stop)
            stored: Mapping[str, Rounding] = {}
            if plan.target == "ort":
                how = self.recipe
                stored = lowering.roundings(graph, plan, self.table.amax, how.storage, how.activation, self.table.span)
            made = lowering.with_biases(made, self.graph, graph, plan, stored, self.recipe.per_channel)
            notes.append(f"bias correction over {len(self.feeds)} images")
        return self._quantized(graph, plan, made, tuple(notes))

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

    def lowered(self, graph: Graph, plan: Scheme, *, aligned: bool = False) -> Graph:
        """Return a graph of the model's shape in INT8."""
        return lower(
            graph,
            plan,
            self.table.amax,
            storage=self.recipe.storage,
            activation=self.recipe.activation,
            per_channel=self.recipe.per_channel,
            aligned=aligned,
            span=self.table.span,
        )

    def _quantized(self, graph: Graph, plan: Scheme, made: Graph, notes: tuple[str, ...]) -> Quantized:
        fast = made
        if plan.target == "ort" and lowering.align(graph) is not graph:
            fast = self.lowered(graph, plan, aligned=True)
        return Quantized(write(fast, self.model), made, plan, notes)


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
