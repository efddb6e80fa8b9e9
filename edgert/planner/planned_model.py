"""Models to plan: graphs with static shapes, rewritten for the DLA, and units restricted by ``placement:``."""

import fnmatch
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from dla import Target
from edgert.board.sections import Precision
from edgert.config import ModelConfig, PipelineFile
from edgert.config.engine_choice import TENSORRT, TENSORRT_DLA, ReplicateConfig
from edgert.engine import default_profile
from edgert.errors import PlacementError, located_at
from edgert.graph import Graph, load, read
from edgert.graph.bounded_shapes import bound_shapes
from edgert.graph.count import multiply_adds
from edgert.graph.dla_rewrites.apply import fit, prepare_for_dla, remaining_rewrites
from edgert.graph.inspection import refuse_integers
from edgert.placement.cutting import unmatched_glob_error
from edgert.placement.dla_share import Survey, survey
from edgert.placement.problem import Network, Unit, names_accelerator
from edgert.report.numbers import share
from edgert.simulator.design import Demand, demands

_DLA = "dla"
_BOUNDS_NAMED = 3  # operators that a note names


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """Model of a pipeline, prepared for a plan.

    Attributes:
        demand: rate at which the model runs.
        config: section of the model in the file.
        where: place of the section, for errors.
        graph: cleaned graph with static shapes, rewritten for a DLA; sizes that depend on data are upper bounds.
        precision: precision of the units.
        open_graph: this graph with unknown sizes where they depend on data, as a builder sees it.
        bounds: node whose result size depends on data → operator and bound, in words.
        tail: names of the nodes whose work depends on data.
    """

    demand: Demand
    config: ModelConfig
    where: str
    graph: Graph
    precision: Precision
    open_graph: Graph
    bounds: Mapping[str, str] = field(default_factory=dict)
    tail: frozenset[str] = frozenset()

    @property
    def wants_dla(self) -> bool:
        """Whether the file puts part of the model on a DLA."""
        requested = self.config.placement
        return requested != "auto" and any(
            name.startswith(_DLA) for names in _rules(requested).values() for name in names
        )

    @cached_property
    def macs(self) -> Mapping[str, int]:
        """Node → multiply-adds."""
        return multiply_adds(self.graph)

    @cached_property
    def structure(self) -> str:
        """SHA-256 of the graph's structure, from :func:`structure_of`."""
        return structure_of(self.graph)

    def survey(self, generation: int, tensorrt: str) -> Survey | None:
        """Return the survey of the model for a DLA; None for FP32, which no DLA supports."""
        if self.precision == "fp32":
            return None
        return survey(self.open_graph, Target(generation, tensorrt, self.precision), macs=self.macs)

    @property
    def about_bounds(self) -> str:
        """Note on the part of the work that depends on data, and its bounds; empty where every size is known."""
        if not self.bounds:
            return ""
        part = sum(self.macs.get(name, 0) for name in self.tail) / max(sum(self.macs.values()), 1)
        first = "; ".join(f"{name} {bound}" for name, bound in list(self.bounds.items())[:_BOUNDS_NAMED])
        more = f" and {len(self.bounds) - _BOUNDS_NAMED} more" if len(self.bounds) > _BOUNDS_NAMED else ""
        return (
            f"{self.demand.model}: {share(part)} of its multiply-adds depend on what an image shows. They run on the "
            f"GPU and count at their maximum: {first}{more}; objects: 100 in its section counts fewer"
        )


def planned_models(file: PipelineFile) -> tuple[PlannedModel, ...]:
    """Return the models that the stages of a pipeline run.

    Raises:
        EdgertError: a model cannot be read, its input size is unknown, or it has integer operators, which TensorRT
            lacks. The error names the model's place in the file.
    """
    found = []
    for demand in demands(file.config):
        config, where = file.config.models[demand.model], file.where("models", demand.model)
        with located_at(where):
            model = load(config.onnx)
            if not file.config.engines or any(name in (TENSORRT, TENSORRT_DLA) for name in file.config.engines):
                refuse_integers(read(model))
            shapes = next(iter((config.profiles or default_profile(model, config)).values()))
            names = remaining_rewrites(config.skip_rewrites, f"{where}.skip_rewrites")
            graph = fit(read(prepare_for_dla(model, shapes)), names)[0]
            sizes = bound_shapes(graph, config.objects)
        # On a board, auto means INT8 with calibration images, otherwise FP16, which is faster than FP32 on the GPU and
        # the DLA of every Jetson.
        auto: Precision = "int8" if config.calibrate is not None else "fp16"
        precision = auto if config.precision == "auto" else config.precision
        found.append(PlannedModel(demand, config, where, sizes.graph, precision, graph, sizes.sources, sizes.tail))
    return tuple(found)


def structure_of(graph: Graph) -> str:
    """Return a SHA-256 of all that decides speed: operators, attributes, edges and shapes, without weights or names."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    def shape(name: str) -> str:
        spec = graph.specs.get(name)
        return "" if spec is None else f"{spec.dtype}{spec.shape}"

    parts: list[object] = [[number(spec.name), spec.dtype, spec.shape] for spec in graph.inputs]
    for node in graph.nodes:
        stored = [graph.constants[name] for name in node.inputs if name in graph.constants]
        settings = {name: value for name, value in node.attributes.items() if isinstance(value, (int, float, list))}
        parts += [node.op, list(map(number, node.inputs)), [f"{one.dtype}{one.shape}" for one in stored], settings]
        parts += [list(map(number, node.outputs)), list(map(shape, node.outputs))]
    text = json.dumps(parts, sort_keys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(text.encode()).hexdigest()


def restrict_to_section(
    network: Network, config: ModelConfig, where: str, found: Survey | None = None, *, first_is_default: bool = False
) -> Network:
    """Return the network with each unit restricted to the accelerators that the model's section allows.

    Args:
        network: network with costs by accelerator.
        config: section of the model.
        where: place of the section, for errors.
        found: survey of the model for the DLA, to name the rule that forbids a unit.
        first_is_default: whether nodes without a matching glob go to the first glob's accelerator, as in a run;
            otherwise they are free.

    Raises:
        PlacementError: an accelerator cannot run its unit, or a glob matches no node.
    """
    if config.placement == "auto":
        return network
    rules = _rules(config.placement)
    names = [node for unit in network.units for node in unit.nodes]
    for glob in rules:
        if glob not in names and not fnmatch.filter(names, glob):
            raise unmatched_glob_error(glob, names).at(f"{where}.placement")
    if first_is_default and "*" not in rules:
        rules = {"*": next(iter(rules.values())), **rules}
    units = tuple(_restrict_unit(unit, rules, f"{where}.placement", found) for unit in network.units)
    weights = config.placement.replicate if isinstance(config.placement, ReplicateConfig) else {}
    return replace(network, units=units, shares={name: one / sum(weights.values()) for name, one in weights.items()})


def _rules(requested: str | ReplicateConfig | Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return glob of node names → accelerators allowed for these nodes."""
    if isinstance(requested, ReplicateConfig):
        return {"*": tuple(requested.replicate)}
    globs = {"*": requested} if isinstance(requested, str) else requested
    return {glob: (name,) for glob, name in globs.items()}


def _restrict_unit(unit: Unit, rules: Mapping[str, Collection[str]], where: str, found: Survey | None) -> Unit:
    """Return a unit with only the costs of its allowed accelerators.

    The first node with a matching rule decides, by its last matching rule. Without a rule all costs stay.
    """
    requested = (
        [rules[glob] for glob in rules if node == glob or fnmatch.fnmatchcase(node, glob)] for node in unit.nodes
    )
    wanted = next((fitting[-1] for fitting in requested if fitting), None)
    if wanted is None:
        return unit
    costs = {name: cost for name, cost in unit.costs.items() if any(names_accelerator(one, name) for one in wanted)}
    if not costs:
        raise _forbidden_error(unit, wanted, where, found)
    return replace(unit, costs=costs)


def _forbidden_error(unit: Unit, wanted: Collection[str], place: str, found: Survey | None) -> PlacementError:
    names = " or ".join(wanted)
    if found is not None and any(name.startswith(_DLA) for name in wanted):
        for node, verdict in zip(found.nodes, found.verdicts, strict=True):
            if node.name in unit.nodes and verdict.answer in ("no", "verify"):
                return PlacementError(
                    f"node {node.name!r} cannot run on {names}",
                    why=f"{verdict.reason} (rule {verdict.rule})",
                    where=place,
                    fix=f"placement: auto{f', or {verdict.fix}' if verdict.fix else ''}",
                )
    return PlacementError(
        f"node {unit.nodes[0]!r} cannot run on {names}",
        why=f"accelerators here that can run it: {', '.join(unit.costs) or 'none'}",
        where=place,
        fix="placement: auto, or a board and mode that has it (edgert boards)",
    )
