"""The build steps of one model: the forms that engines run, and its members of the bundle."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from edgert.bundle.manifest import ModelEntry
from edgert.compiler import model_steps, precision_steps
from edgert.compiler.build_target import MODEL, BuildTarget, ModelJob
from edgert.compiler.precision_steps import CACHE, CHOSEN, HIGHER, chosen_ranges, higher_precision_units
from edgert.config import PipelineFile, SinkStage, SourceStage
from edgert.engine import open_spans
from edgert.errors import ArtifactError, ConfigError, PlacementError, raised_as, shown
from edgert.graph import Graph, TensorSpec, read
from edgert.installation import data_folder
from edgert.quantization.lowering.trt_form import dla_int8_scales, parse_cache
from edgert.steps import Product, Report, Runner, Step, to_json

if TYPE_CHECKING:
    from edgert.planner import Plan

# Steps of the placement: nodes that a DLA can run, and the accelerator of each node with predicted costs.

PLACEMENT, PLAN = "placement.json", "plan.json"


def plan_step(file: PipelineFile, target: BuildTarget, digests: Mapping[str, str]) -> Step:
    """Return the step that predicts the board's work for the pipeline and chooses a placement for every model.

    It promises a place for every unit of every used model.

    Args:
        file: the pipeline.
        target: board and releases.
        digests: model → digest of its file.
    """
    coefficients = hashlib.sha256()  # of the cost model
    for path in sorted(data_folder("configs").glob("costs/*.yaml")):
        coefficients.update(path.read_bytes())
    facts = {
        **_plan_facts(file, digests),
        "board": target.digest,
        "mode": target.mode,
        "tensorrt": target.tensorrt,
        "costs": coefficients.hexdigest(),
        "budgets": file.config.budgets.model_dump(mode="json"),
    }

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.planner.plan_text import to_json as plain
        from edgert.planner.planning import plan_boards

        try:
            made = plan_boards(file, target.requested, target.mode, tensorrt=target.tensorrt, look=False)
        except (ConfigError, PlacementError) as error:
            if error.what != "the clocks of this power mode are unknown":  # the file itself is right then
                raise
            report.note(f"nothing is predicted for {target.name} in {target.mode}: {error.why or error.what}")
            return {PLAN: to_json(None), PLACEMENT: to_json({})}
        if made.smallest is None:
            report.note("no placement keeps every budget; the best of them is taken")
        return {PLAN: to_json(plain(made)), PLACEMENT: to_json(_engines_by_model(made))}

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
    """Return the step that applies the DLA's rules to every node.

    It promises a verdict with rule and reason for each.

    Args:
        job: the model and its target.
        rewritten: float model.
        quantized: INT8 form, which has scales together with ``calibrated``; None if ``lowered`` has them, or FP16.
        calibrated: ranges of the INT8 form.
        lowered: calibration cache with the scales; None if ``quantized`` has them, or FP16.
    """
    target = job.target
    assert target.board is not None  # the caller checks it
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
        scaled: Mapping[str, float] | None = None if lowered is None else parse_cache(lowered.files[CACHE].decode())
        if quantized is not None and calibrated is not None:
            table = chosen_ranges(calibrated, quantized, model)
            scaled = dla_int8_scales(graph, table, higher_precision_units(model, quantized, dla), dla)
        found = survey(graph, target_of(dla.generation, target.tensorrt, job.precision), scaled).to_json()
        keys = ("target", "summary", "fits_core", "fixes", "segments", "nodes")
        return {PLACEMENT: to_json({key: found[key] for key in keys})}

    def promise(files: Mapping[str, bytes]) -> str:
        found = Product(files).json(PLACEMENT)["summary"]
        return f"DLA: {found['yes']} nodes yes, {found['verify']} to verify, {found['no']} no"

    return Step("survey", job.name, 1, facts, make, promise)


def _engines_by_model(made: "Plan") -> dict[str, Any]:
    """Return model → engines in the chosen row: share of the frames, place of each node, and predicted cost."""
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
                "predicted": {"units_ms": units_ms, "latency_ms": model.latency_ms},
            }
            found[model.name].append(one)
    return found


def _plan_facts(file: PipelineFile, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts that a plan depends on: of the models, and of stages, which decide how often models run."""
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


FLOAT, FP16, ORT = "float", "fp16", "ort"


@dataclass(frozen=True)
class ModelForms:
    """A model in all its forms.

    Attributes:
        job: the model and its target.
        digest: digest of its file.
        forms: name → product of the step that made the form; ``float`` is always present.
        reference: model with which its forms are compared.
        surveyed: product of :func:`survey_step`; None if no DLA will run it.
        files: kind → content of further files.
    """

    job: ModelJob
    digest: str
    forms: Mapping[str, Product]
    reference: Product
    surveyed: Product | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Name of the form that ONNX Runtime runs."""
        return next(name for name in (ORT, FP16, FLOAT) if name in self.forms)

    @property
    def compiled(self) -> Product:
        """Form that a board compiles for its DLA; up to TensorRT 10 the float model."""
        names = (FLOAT,) if self.job.target.takes_cache else ("dla", FP16, FLOAT)
        return self.forms[next(name for name in names if name in self.forms)]

    @cached_property
    def graph(self) -> Graph:
        """Graph of that form."""
        return read(self.job.model(self.compiled.files[MODEL]))

    @property
    def is_static(self) -> bool:
        """Whether ONNX Runtime's form has one size, as all forms but ``float`` have."""
        return self.host != FLOAT or self.job.is_one_size


def build_forms(job: ModelJob, runner: Runner) -> ModelForms:
    """Return a model in all its forms, by running the steps that are not cached.

    Raises:
        EdgertError: a step failed; ``where`` is the model's place in the file.
    """
    loaded = runner.do(model_steps.load_step(job))
    facts = loaded.json(model_steps.FACTS)
    shaped = runner.do(model_steps.shapes_step(job, loaded))
    if facts["is_quantized"] and precision_steps.wants_cache(job):
        split = runner.do(precision_steps.split_qdq_step(job, shaped))
        if precision_steps.is_split(split):
            return _with_own_scales(precision_steps.as_int8(job), runner, facts["digest"], shaped, split)
    rewritten = runner.do(model_steps.rewrite_step(job, shaped, facts["is_quantized"]))
    forms: dict[str, Product] = {FLOAT: rewritten}
    files = {"changes": rewritten.files[model_steps.CHANGES]}
    precision = "as it is" if facts["is_quantized"] else job.precision
    calibrated = None
    if precision == "int8":
        calibrated = runner.do(precision_steps.calibrate_step(job, rewritten))
        on_dla: tuple[precision_steps.Form, ...] = ("dla",) if job.compiles_for_dla else ()
        requested: tuple[precision_steps.Form, ...] = ("ort",) if job.target.board is None else ("ort", "gpu", *on_dla)
        for form in requested:
            forms[form] = runner.do(precision_steps.quantize_step(job, form, rewritten, calibrated))
        higher = {
            name: made.json(precision_steps.HIGHER)
            for name, made in forms.items()
            if precision_steps.HIGHER in made.files
        }
        files |= {"ranges": calibrated.files[precision_steps.RANGES], "higher_precision": to_json(higher)}
    elif precision == "fp16":
        forms[FP16] = runner.do(precision_steps.fp16_step(job, rewritten))
        files["higher_precision"] = forms[FP16].files[precision_steps.HIGHER]
    surveyed = None
    if job.target.uses_dla(job.config) and job.is_one_size:
        surveyed = runner.do(survey_step(job, rewritten, forms.get("dla"), calibrated))
        if calibrated is not None and "dla" in forms and job.target.takes_cache:
            lowered = runner.do(precision_steps.lower_step(job, rewritten, calibrated, forms["dla"]))
            files |= _cache_files(lowered)
    return _with_quality(ModelForms(job, facts["digest"], forms, shaped, surveyed, files), runner)


def _with_own_scales(job: ModelJob, runner: Runner, digest: str, shaped: Product, split: Product) -> ModelForms:
    """Return the forms of a Q/DQ model for a DLA with TensorRT <= 10.

    The DLA gets the float model with a cache of its scales; all other engines get the unchanged model.
    """
    rewritten = runner.do(model_steps.rewrite_step(job, split, is_quantized=False))
    lowered = runner.do(precision_steps.qdq_cache_step(job, split, rewritten))
    forms = {FLOAT: rewritten, ORT: shaped, "gpu": shaped}
    files = {"changes": rewritten.files[model_steps.CHANGES], **_cache_files(lowered)}
    surveyed = runner.do(survey_step(job, rewritten, None, None, lowered))
    return _with_quality(ModelForms(job, digest, forms, split, surveyed, files), runner)


def _with_quality(made: ModelForms, runner: Runner) -> ModelForms:
    job = made.job
    verified = runner.do(model_steps.verify_step(job, made.reference, made.forms, job.config.accuracy is not None))
    quality = verified.json(model_steps.QUALITY)  # the steps of INT8 add accuracy and noise per tensor
    for name, form in made.forms.items():
        if model_steps.QUALITY in form.files:
            quality["forms"][name] |= form.json(model_steps.QUALITY)
    files = {**made.files, "quality": to_json(quality)}
    if (path := job.config.task.labels) is not None:
        with raised_as(ArtifactError, f"cannot read labels {str(path)!r}", where=job.where):
            files["labels"] = path.read_bytes()
    return replace(made, files=files)


def _cache_files(lowered: Product) -> dict[str, bytes]:
    return {"cache": lowered.files[precision_steps.CACHE], "fp16_nodes": lowered.files[precision_steps.FP16_NODES]}


def _image_layout(model: ModelForms, placement: Mapping[str, str]) -> str:
    """Return a line on the layout in which an engine with DLA layers will take its image on the board."""
    from edgert.compiler.engine_specs import extend_placement, input_layout

    job = model.job
    found = input_layout(
        model.graph,
        job.config.input,
        extend_placement(model.graph, placement),
        typed=not job.target.takes_cache,
        precision=job.precision,
        fp16_nodes=json.loads(model.files["fp16_nodes"])["nodes"] if "fp16_nodes" in model.files else (),
        scales=parse_cache(model.files["cache"].decode()) if "cache" in model.files else {},
    )
    return found.describe({found.tensor: found.format} if found.format is not None else {})


def _placement_step(model: ModelForms, planned: Product | None) -> Step:
    """Return the step that writes a model's placement, and why a DLA can or cannot run each node.

    It is a separate step because the layout of the image depends on the complete graph.
    """
    job = model.job
    engines = planned.json(PLACEMENT).get(job.name, []) if planned is not None else []
    texts = {kind: model.files[kind].decode() for kind in ("cache", "fp16_nodes") if kind in model.files}
    facts = {
        "engines": engines,
        "surveyed": model.surveyed.digest if model.surveyed is not None else None,
        "forms": [model.forms[FLOAT].digest, model.compiled.digest],
        "texts": texts,
        "requested": job.config.model_dump(mode="json", include={"placement", "input"}),
        "precision": job.precision,
        "pinned": job.why_usual_size,
        "tensorrt": job.target.tensorrt,
    }

    def make(report: Report) -> Mapping[str, bytes]:
        known = set(model.forms[FLOAT].json(model_steps.PORTS)["nodes"])  # the planner's graph also has folded nodes
        placed = []
        for engine in engines:
            nodes = {node: place for node, place in engine["nodes"].items() if node in known}
            on_dla = any(place.startswith("dla") for place in nodes.values())
            placed.append({**engine, "nodes": nodes, **({"input": _image_layout(model, nodes)} if on_dla else {})})
        dla = model.surveyed.json(PLACEMENT) if model.surveyed is not None else None
        requested = job.config.model_dump(mode="json", include={"placement"})["placement"]
        found = {"requested": requested, "engines": placed, "dla": dla}
        if job.config.input.shape.is_open:
            content = model.forms[FLOAT].files[MODEL]
            spans = {} if job.is_one_size else open_spans(job.model(content), job.config)
            found |= {"spans": {name: asdict(span) for name, span in spans.items()}, "pinned": job.why_usual_size}
        return {PLACEMENT: to_json(found)}

    def promise(files: Mapping[str, bytes]) -> str:
        layouts = [engine["input"] for engine in Product(files).json(PLACEMENT)["engines"] if "input" in engine]
        return "; ".join(dict.fromkeys(layouts))

    return Step("placement", job.name, 1, facts, make, promise)


_PORTS = TypeAdapter(list[TensorSpec])
_ENDINGS = {"cache": "calibration.cache", "labels": "labels.txt"}


def pack_model(model: ModelForms, planned: Product | None, runner: Runner) -> tuple[ModelEntry, dict[str, bytes]]:
    """Return a model's entry in the manifest, and its members in the bundle."""
    job = model.job
    base = f"models/{job.name}"
    forms = {name: f"{base}/{'model' if name == FLOAT else name}.onnx" for name in model.forms}
    ports = model.forms[FLOAT].json(model_steps.PORTS)
    content = dict(model.files)
    if job.target.board is not None:
        content["placement"] = runner.do(_placement_step(model, planned)).files[PLACEMENT]
    files = {kind: f"{base}/{_ENDINGS.get(kind, f'{kind}.json')}" for kind in content}

    entry = ModelEntry(
        source=shown(job.config.onnx.name),
        digest=model.digest,
        precision=job.precision,
        inputs=_PORTS.validate_python(ports["inputs"]),
        outputs=_PORTS.validate_python(ports["outputs"]),
        forms=forms,
        files=files,
    )
    members = {path: model.forms[name].files[MODEL] for name, path in forms.items()}
    return entry, members | {path: content[kind] for kind, path in files.items()}
