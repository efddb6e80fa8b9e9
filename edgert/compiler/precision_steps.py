"""The steps from a float model to one in the requested precision: calibrate, quantize, lower.

Models that have Q/DQ nodes already are split into float model and scales instead, if a DLA with TensorRT <= 10 will run
them.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from dla import Target as Dla
from edgert.compiler.build_target import MODEL, ModelJob, as_files, software
from edgert.compiler.model_steps import QUALITY
from edgert.config import DetectTask, PythonTask
from edgert.dataset import feed_of, open_dataset
from edgert.errors import BuildError, CalibrationError, ModelError
from edgert.graph import Model, inputs, outputs, read, to_bytes
from edgert.quantization.calibration.ranges import RangeTable, load_table, save_table
from edgert.quantization.lowering.trt_form import check_cache, lower_to_cache, write_cache
from edgert.quantization.run import CALIBRATE_FIX, Run, needs_images
from edgert.quantization.scheme.scheme import scheme
from edgert.quantization.scheme.trt_scheme import layer_precisions
from edgert.quantization.scheme.units import USUAL_DLA
from edgert.steps import Product, Report, Step, digest_of, to_json
from edgert.user_code import code_name

if TYPE_CHECKING:
    from edgert.quantization.int8_model import QuantizationResult

Form = Literal["ort", "gpu", "dla"]
RANGES, HIGHER, CHOSEN = "ranges.json", "higher_precision.json", "chosen.json"
CACHE, FP16_NODES = "calibration.cache", "fp16_nodes.json"
_LOWEST_SCORE = 0.01
"""Score from which an accuracy budget counts boxes, unless the task's score is lower; see
:data:`edgert.evaluation.evaluate_model.LOWEST_SCORE`."""


def calibrate_step(job: ModelJob, rewritten: Product) -> Step:
    """Return the step that measures the ranges of all tensors.

    It promises a positive, finite range for every tensor that INT8 needs.

    Raises:
        CalibrationError: no images are named.
    """
    requested = job.config.calibrate
    if requested is None:
        raise needs_images(job.config, f"{CALIBRATE_FIX}, or precision: fp16").at(job.where)
    method = requested.method if requested.method != "auto" else "mse"
    facts = [rewritten.digest, job.images_digest, job.input_data(), method, requested.early_stop, software()]

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.quantization.calibration.range_calibrator import calibrate

        model = static_model(job, rewritten)
        state = job.state / f"{digest_of(facts)[:40]}.json"
        table = calibrate(
            model,
            feed_of(job.images, model, job.config),
            method=method,
            early_stop=requested.early_stop,
            state=state,
            bar=lambda _, done, total: report.progress(done, total, "images"),
            stop=job.stop,
        )
        for warning in table.warnings:
            report.note(warning)
        with as_files({}) as folder:
            save_table(table, folder / RANGES)
            return {RANGES: (folder / RANGES).read_bytes()}

    def promise(files: Mapping[str, bytes]) -> str:
        table = _table(files[RANGES], static_model(job, rewritten))
        for name, histogram in table.histograms.items():
            if histogram.values and not (math.isfinite(table.amax(name)) and table.amax(name) > 0):
                raise CalibrationError(f"tensor {name!r} has no usable range", where=job.where)
        return f"{len(table.histograms)} ranges from {table.images} images"

    return Step("calibrate", job.name, 1, facts, make, promise)


def quantize_step(job: ModelJob, form: Form, rewritten: Product, calibrated: Product) -> Step:
    """Return the step that makes the INT8 form for one engine.

    It promises the accuracy budget, if any, and unchanged inputs and outputs.
    """
    config = job.config
    dla = job.target.dla if form == "dla" else None
    inputs = (rewritten.digest, calibrated.digest, job.images_digest, job.input_data())
    facts = [form, *inputs, _quantize_facts(job), software()]
    if dla is not None:
        facts.append([str(dla.generation), dla.tensorrt])

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.quantization.batched import PAIR, open_batch
        from edgert.quantization.calibrated import CalibratedModel
        from edgert.quantization.int8_model import quantize_section

        model = static_model(job, rewritten)
        feed = feed_of(job.images, model, config)
        run = Run(
            job.where,
            job.directory,
            report.note,
            lambda what, done, total: report.progress(done, total, what),
            job.stop,
            job.tracking,
        )
        outcome = quantize_section(
            config,
            CalibratedModel(model, _table(calibrated.files[RANGES], model), feed),
            target=form,
            dla=dla or USUAL_DLA,
            run=run,
            state=job.state / f"{digest_of(facts)[:40]}.json",
            by_task=False,
        )
        made = outcome.model
        if job.keeps_batch:
            made = open_batch(made, [feed.feeds(index) for index in range(min(PAIR, len(feed)))])
        return {
            MODEL: to_bytes(made),
            HIGHER: to_json(dict(outcome.kept)),
            CHOSEN: to_json(dict(outcome.table.chosen)),
            QUALITY: to_json(_quality(outcome)),
        }

    def promise(files: Mapping[str, bytes]) -> str:
        check_same_ports(job, rewritten.files[MODEL], files[MODEL])
        found = Product(files).json(QUALITY)
        return f"for {form}: {'; '.join(found['summary'][: 2 if 'accuracy' in found else 1])}"

    return Step("quantize", job.name, 1, facts, make, promise)


def static_model(job: ModelJob, rewritten: Product) -> Model:
    """Return the float model at the size at which ranges are measured, even if its batch stays dynamic."""
    from edgert.graph.dla_rewrites.apply import with_static_batch

    model = job.model(rewritten.files[MODEL])
    return with_static_batch(model) if job.keeps_batch else model


def fp16_step(job: ModelJob, rewritten: Product) -> Step:
    """Return the step that makes the float16 form. It promises unchanged inputs and outputs."""
    facts = [rewritten.digest, job.config.quantize.keep, software()]

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.quantization.conversion import fp16_model

        made, kept = fp16_model(job.model(rewritten.files[MODEL]), job.config, open_batch=job.keeps_batch)
        return {MODEL: to_bytes(made), HIGHER: to_json(kept)}

    def promise(files: Mapping[str, bytes]) -> str:
        check_same_ports(job, rewritten.files[MODEL], files[MODEL])
        return f"float16, {len(Product(files).json(HIGHER))} nodes stay float32"

    return Step("quantize", job.name, 1, ["fp16", *facts], make, promise)


def lower_step(job: ModelJob, rewritten: Product, calibrated: Product, quantized: Product) -> Step:
    """Return the step that makes the calibration cache for TensorRT <= 10.

    It promises a readable cache with a scale for every tensor.
    """
    dla = job.target.dla
    facts = [rewritten.digest, calibrated.digest, quantized.files[HIGHER].decode(), quantized.files[CHOSEN].decode()]

    def make(report: Report) -> Mapping[str, bytes]:
        model = job.model(rewritten.files[MODEL])
        table = chosen_ranges(calibrated, quantized, model)
        weak = lower_to_cache(model, table, higher_precision_units(model, quantized, dla), dla)
        fp16 = {"nodes": list(weak.fp16), "layer_precisions": weak.layer_precisions}
        return {CACHE: weak.cache.encode(), FP16_NODES: to_json(fp16)}

    return Step("lower", job.name, 1, [*facts, dla.generation, dla.tensorrt], make, _cache_promise(job, rewritten))


def _cache_promise(job: ModelJob, rewritten: Product) -> Callable[[Mapping[str, bytes]], str]:
    def promise(files: Mapping[str, bytes]) -> str:
        nodes = Product(files).json(FP16_NODES)["nodes"]
        return check_cache(files[CACHE].decode(), nodes, read(job.model(rewritten.files[MODEL])))

    return promise


def chosen_ranges(calibrated: Product, quantized: Product, model: Model) -> RangeTable:
    """Return the ranges with the methods that were chosen for the quantized form."""
    return _table(calibrated.files[RANGES], model).with_chosen(quantized.json(CHOSEN))


def higher_precision_units(model: Model, quantized: Product, dla: Dla) -> list[str]:
    """Return the names of a quantized form's units in higher precision."""
    names = {unit.name for unit in scheme(read(model), "dla", dla=dla).units}
    return [name for name in quantized.json(HIGHER) if name in names]


def check_same_ports(job: ModelJob, before: bytes, after: bytes) -> None:
    """Raise BuildError unless both models have the same names of inputs and outputs in the same order."""
    first, second = job.model(before), job.model(after)
    for ports in (inputs, outputs):
        names = [[spec.name for spec in ports(model)] for model in (first, second)]
        if names[0] != names[1]:
            raise BuildError(
                f"quantizing model {job.name!r} changed its inputs or outputs",
                why=f"{names[0]} before, {names[1]} after",
                where=job.where,
                fix="please report the model",
            )


def _table(content: bytes, model: Model) -> RangeTable:
    with as_files({RANGES: content}) as folder:
        return load_table(folder / RANGES, model)


def _quality(outcome: "QuantizationResult") -> dict[str, Any]:
    """Return the quality record of an INT8 form, without values that differ from run to run."""
    from edgert.quantization.describe import summary

    noise = {name: round(value, 3) if math.isfinite(value) else str(value) for name, value in outcome.sqnr_db.items()}
    notes = list(outcome.quantized.notes)
    found: dict[str, Any] = {"summary": list(summary(outcome)), "sqnr_db": noise, "notes": notes}
    if (one := outcome.evaluation) is not None:
        results = [{"name": each.name, "images": each.images, "values": dict(each.values)} for each in one.results]
        comparisons = one.to_json()["comparisons"]
        found["accuracy"] = {"metric": one.metric, "results": results, "comparisons": comparisons}
    return found


def _quantize_facts(job: ModelJob) -> dict[str, Any]:
    """Return the facts that determine an INT8 form: keys of the section, and digests of labels and user code."""
    config = job.config
    found = config.model_dump(mode="json", include={"quantize"})
    found["choose"] = config.calibrate is not None and config.calibrate.method == "auto"
    if config.accuracy is not None:
        from edgert.stages.decode.kinds import labels_of

        task, labels = config.task, labels_of(config, job.where)
        dataset = open_dataset(config.accuracy.dataset, task, labels, where=job.where)
        path = dataset.path
        listed = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found |= config.model_dump(mode="json", include={"accuracy"})
        if job.tracking is not None:
            found["tracking"] = job.tracking.model_dump(mode="json")
        found["labels"] = [*labels, dataset.images.digest(), listed]
        if isinstance(task, DetectTask):
            task = task.model_copy(update={"score": min(task.score, _LOWEST_SCORE)})
        found["task"] = task.model_dump(mode="json", exclude={"labels"})
        if isinstance(task, PythonTask):
            found["code"] = code_name(task.python, job.where, job.directory).digest()
    return found


# Models with Q/DQ nodes for a DLA with TensorRT <= 10, which become a float model and a calibration cache.

SPLIT = "qdq.json"


def wants_cache(job: ModelJob) -> bool:
    """Return whether a Q/DQ model needs a calibration cache, for a DLA with a TensorRT that reads caches."""
    return job.compiles_for_dla and job.target.takes_cache and job.is_one_size


def split_qdq_step(job: ModelJob, shaped: Product) -> Step:
    """Return the step that splits a Q/DQ model into a float model and scales.

    A model that cannot be split stays as it is, on the GPU, and the reason is reported; with a ``placement:`` other
    than ``auto`` that is an error. The step promises a model without Q/DQ, or the reason.
    """

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.quantization.from_qdq import qdq_model

        try:
            found = qdq_model(job.model(shaped.files[MODEL]))
        except ModelError as error:
            if job.config.placement != "auto":
                raise
            report.note(f"no scales for a DLA: {error.what}: {error.why}")
            return {SPLIT: to_json({"refused": error.what})}
        for problem in found.problems:
            report.note(problem)
        split = {"refused": "", "scales": dict(found.scales), "float_nodes": list(found.float_nodes)}
        return {MODEL: to_bytes(found.model), SPLIT: to_json(split)}

    def promise(files: Mapping[str, bytes]) -> str:
        found = Product(files).json(SPLIT)
        if found["refused"]:
            return f"as it is: {found['refused']}"
        return f"{len(found['scales'])} scales of its Q/DQ nodes"

    requested = str(job.config.placement)
    return Step("split", job.name, 1, [shaped.digest, requested == "auto", software()], make, promise)


def is_split(split: Product) -> bool:
    """Return whether the model could be split."""
    return not split.json(SPLIT)["refused"]


def as_int8(job: ModelJob) -> ModelJob:
    """Return the job for a model that is INT8 already, without equalization, which would change its scales."""
    quantize = job.config.quantize.model_copy(update={"equalize": False})
    return replace(job, config=job.config.model_copy(update={"precision": "int8", "quantize": quantize}))


def qdq_cache_step(job: ModelJob, split: Product, rewritten: Product) -> Step:
    """Return the step that makes the calibration cache from a model's own scales.

    It promises a readable cache for tensors of the model.
    """
    tensorrt = job.target.tensorrt

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.quantization.from_qdq import propagate_scales

        graph, found = read(job.model(rewritten.files[MODEL])), split.json(SPLIT)
        scales, problems = propagate_scales(graph, {name: float(scale) for name, scale in found["scales"].items()})
        for problem in problems:
            report.note(problem)
        nodes = set(found["float_nodes"])
        fp16 = [node.name for node in graph.nodes if node.name in nodes]
        try:
            option = layer_precisions(fp16)
        except CalibrationError:  # trtexec's option cannot express the name, for example with a comma
            option = ""
        return {
            CACHE: write_cache(scales, tensorrt).encode(),
            FP16_NODES: to_json({"nodes": fp16, "layer_precisions": option}),
        }

    return Step(
        "lower", job.name, 1, ["Q/DQ", split.digest, rewritten.digest, tensorrt], make, _cache_promise(job, rewritten)
    )
