"""The steps of placement: which nodes a DLA can run, and what runs where on the board, with predicted costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgert.compiler.build_target import BuildTarget
from edgert.compiler.model_job import MODEL, ModelJob
from edgert.compiler.precision_steps import CACHE, CHOSEN, HIGHER, higher_precision_units, used_table
from edgert.config import PipelineFile, SinkStage, SourceStage, StageConfig
from edgert.errors import ConfigError, PlacementError
from edgert.installation import data_folder
from edgert.steps import Product, Report, Step, to_json

if TYPE_CHECKING:
    from edgert.backend import Span
    from edgert.planner import ModelRow, Plan

PLACEMENT, PLAN = "placement.json", "plan.json"


def plan_step(file: PipelineFile, target: BuildTarget, digests: Mapping[str, str]) -> Step:
    """Predicts the board's work for the whole pipeline and chooses a placement for every model.

    Promises a place for every unit of every model that some stage runs.

    Args:
        digests: model → digest of its file.
    """
    models = {name: _planned(file, name, digest) for name, digest in digests.items()}
    facts = {
        "board": target.digest,
        "mode": target.mode,
        "tensorrt": target.tensorrt,
        "costs": _costs(),
        "models": models,
        "stages": {name: _flow(stage) for name, stage in file.config.stages.items()},
        "budgets": file.config.budgets.model_dump(mode="json"),
    }

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.planner import plan
        from edgert.planner.plan_text import to_json as plain

        try:
            made = plan(file, board=target.asked, mode=target.mode, tensorrt=target.tensorrt)
        except (ConfigError, PlacementError) as error:
            if not _is_unpredictable(error):
                raise
            report.note(f"nothing is predicted for {target.name} in {target.mode}: {error.why or error.what}")
            return {PLAN: to_json(None), PLACEMENT: to_json({})}
        if made.smallest is None:
            report.note("no placement keeps every budget; the best of them is taken")
        return {PLAN: to_json(plain(made)), PLACEMENT: to_json(_engines(made))}

    def promise(files: Mapping[str, bytes]) -> str:
        found = Product(files).json(PLAN)
        return str(found["verdict"]) if found else "no prediction"

    return Step("place", "", 1, facts, make, promise)


def survey_step(
    job: ModelJob,
    rewritten: Product,
    quantized: Product | None,
    calibrated: Product | None,
    lowered: Product | None = None,
) -> Step:
    """Asks the DLA's rules about every node. Promises a verdict with its rule and reason for each.

    Args:
        quantized, calibrated: the source of the scales of an INT8 model.
        lowered: its calibration cache, where that is their source.
    """
    target = job.target
    assert target.board is not None  # asked by the caller
    dla = target.dla
    facts = [rewritten.digest, dla.generation, target.tensorrt, job.precision]
    if quantized is not None and calibrated is not None:
        facts += [calibrated.digest, quantized.files[HIGHER].decode(), quantized.files[CHOSEN].decode()]

    if lowered is not None:
        facts.append(lowered.digest)

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph import read
        from edgert.placement.dla_share import survey, target_of
        from edgert.quantization.lowering.trt_cache import parse_cache
        from edgert.quantization.lowering.trt_form import scales_of

        model = job.model(rewritten.files[MODEL])
        graph = read(model)
        scaled = None if lowered is None else parse_cache(lowered.files[CACHE].decode()).scales
        if quantized is not None and calibrated is not None:
            table = used_table(calibrated, quantized, model)
            scaled = scales_of(graph, table, higher_precision_units(model, quantized, dla), dla)
        found = survey(graph, target_of(dla.generation, target.tensorrt, job.precision), scaled).to_json()
        keys = ("target", "summary", "fits_core", "fixes", "segments", "nodes")
        return {PLACEMENT: to_json({key: found[key] for key in keys})}

    def promise(files: Mapping[str, bytes]) -> str:
        found = Product(files).json(PLACEMENT)["summary"]
        return f"DLA: {found['yes']} nodes yes, {found['verify']} to verify, {found['no']} no"

    return Step("survey", job.name, 1, facts, make, promise)


def placement_of(
    job: ModelJob,
    engines: Sequence[Mapping[str, Any]],
    surveyed: Product | None,
    nodes: Collection[str],
    spans: Mapping[str, Span],
    image: Callable[[Mapping[str, str]], str],
) -> bytes:
    """``placement.json`` of a model: what was asked, what was chosen, and why a DLA can or cannot run each node.

    Args:
        engines: of the plan's chosen row.
        spans: input → the shapes that its engine is to allow, where there are several.
        nodes: names of the nodes of the model that is compiled; others, which the planner saw before they were folded,
            are left out.
        image: how an engine with this placement takes its image, in a line; called for those with DLA layers.
    """
    asked = job.config.model_dump(mode="json", include={"placement"})["placement"]
    dla = surveyed.json(PLACEMENT) if surveyed is not None else None
    found = {"asked": asked, "engines": [_engine_entry(engine, nodes, image) for engine in engines], "dla": dla}
    if job.config.input.shape.is_open:
        found |= {"spans": {name: asdict(span) for name, span in spans.items()}, "pinned": job.pinned}
    return to_json(found)


def _engine_entry(
    engine: Mapping[str, Any], nodes: Collection[str], image: Callable[[Mapping[str, str]], str]
) -> dict[str, Any]:
    where = {node: place for node, place in engine["nodes"].items() if node in nodes}
    on_dla = any(place.startswith("dla") for place in where.values())
    return {**engine, "nodes": where, **({"input": image(where)} if on_dla else {})}


def _engines(made: Plan) -> dict[str, Any]:
    """Model → its engines in the chosen row."""
    (board,) = made.boards
    row = board.rows[board.chosen if board.chosen is not None else 0]
    return {model.name: [_engine(model, number) for number in range(len(model.engines))] for model in row.models}


def _engine(model: ModelRow, number: int) -> dict[str, Any]:
    """One engine: its part of the frames, where each node runs, and what that is predicted to cost."""
    engine = model.engines[number]
    placed = list(zip(model.network.units, engine.assignment, strict=True))
    times = [unit.costs[where].time_ms for unit, where in placed]
    return {
        "share": engine.share,
        "accelerators": list(engine.accelerators),
        "nodes": {node: where for unit, where in placed for node in unit.nodes},
        "predicted": {"units_ms": sum(times), "latency_ms": model.latency_ms, "p99_ms": model.p99_ms},
    }


def _planned(file: PipelineFile, name: str, digest: str) -> list[Any]:
    config = file.config.models[name]
    seen = config.model_dump(mode="json", include={"profiles", "precision", "placement", "skip_rewrites"})
    seen |= config.input.model_dump(mode="json", include={"size", "shape", "layout", "color"})
    return [digest, seen, config.calibrate is not None]


def _flow(stage: StageConfig) -> dict[str, Any]:
    """What of a stage decides how often models run."""
    if isinstance(stage, SourceStage):
        return {"fps": stage.fps}
    if isinstance(stage, SinkStage):
        return {"inputs": list(stage.inputs)}
    return stage.model_dump(mode="json")


def _costs() -> str:
    """Digest of the cost model's coefficients."""
    found = hashlib.sha256()
    for path in sorted(data_folder("configs").glob("costs/*.yaml")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _is_unpredictable(error: ConfigError | PlacementError) -> bool:
    """Whether what is missing is knowledge of the board, rather than something in the pipeline file."""
    return error.what == "clocks unknown"
