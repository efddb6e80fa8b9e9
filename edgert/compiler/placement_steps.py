"""The steps of placement: which nodes a DLA can run, and what runs where on the board, with predicted costs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from edgert.compiler.build_target import MODEL, BuildTarget, ModelJob
from edgert.compiler.precision_steps import CACHE, CHOSEN, HIGHER, higher_precision_units, used_table
from edgert.config import PipelineFile, SinkStage, SourceStage
from edgert.errors import ConfigError, PlacementError
from edgert.graph import read
from edgert.installation import data_folder
from edgert.planner import Plan
from edgert.quantization.lowering.trt_form import parse_cache, scales_of
from edgert.steps import Product, Report, Step, to_json

PLACEMENT, PLAN = "placement.json", "plan.json"


def plan_step(file: PipelineFile, target: BuildTarget, digests: Mapping[str, str]) -> Step:
    """Predicts the board's work for the whole pipeline and chooses a placement for every model.

    Promises a place for every unit of every model that some stage runs.

    Args:
        digests: model → digest of its file.
    """
    coefficients = hashlib.sha256()  # of the cost model
    for path in sorted(data_folder("configs").glob("costs/*.yaml")):
        coefficients.update(path.read_bytes())
    facts = {
        **_seen(file, digests),
        "board": target.digest,
        "mode": target.mode,
        "tensorrt": target.tensorrt,
        "costs": coefficients.hexdigest(),
        "budgets": file.config.budgets.model_dump(mode="json"),
    }

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.planner import plan
        from edgert.planner.plan_text import to_json as plain

        try:
            made = plan(file, board=target.asked, mode=target.mode, tensorrt=target.tensorrt)
        except (ConfigError, PlacementError) as error:
            if error.what != "clocks unknown":  # which is a gap in what is known of the board, not in the file
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
        from edgert.placement.dla_share import survey, target_of

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


def _engines(made: Plan) -> dict[str, Any]:
    """Model → its engines in the chosen row: its part of the frames, where each node runs, and the predicted cost."""
    (board,) = made.boards
    row = board.rows[board.chosen if board.chosen is not None else 0]
    found: dict[str, Any] = {}
    for model in row.models:
        found[model.name] = []
        for engine in model.engines:
            placed = list(zip(model.network.units, engine.assignment, strict=True))
            units_ms = sum(unit.costs[where].time_ms for unit, where in placed)
            one = {
                "share": engine.share,
                "accelerators": list(engine.accelerators),
                "nodes": {node: where for unit, where in placed for node in unit.nodes},
                "predicted": {"units_ms": units_ms, "latency_ms": model.latency_ms, "p99_ms": model.p99_ms},
            }
            found[model.name].append(one)
    return found


def _seen(file: PipelineFile, digests: Mapping[str, str]) -> dict[str, Any]:
    """What of the models, and of the stages, which decide how often models run, a plan depends on."""
    models, stages = dict[str, Any](), dict[str, Any]()
    for name, digest in digests.items():
        config = file.config.models[name]
        seen = config.model_dump(mode="json", include={"profiles", "precision", "placement", "skip_rewrites"})
        seen |= config.input.model_dump(mode="json", include={"size", "shape", "layout", "color"})
        models[name] = [digest, seen, config.calibrate is not None]
    for name, stage in file.config.stages.items():
        if isinstance(stage, SourceStage):
            stages[name] = {"fps": stage.fps}
        elif isinstance(stage, SinkStage):
            stages[name] = {"inputs": list(stage.inputs)}
        else:
            stages[name] = stage.model_dump(mode="json")
    return {"models": models, "stages": stages}
