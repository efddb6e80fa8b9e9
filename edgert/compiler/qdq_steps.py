"""The steps that take a model which came with Q/DQ nodes to a DLA with TensorRT up to 10: float model and cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgert.compiler.model_job import MODEL, ModelJob, software
from edgert.compiler.precision_steps import CACHE, EXCEPTIONS
from edgert.errors import CalibrationError, ModelError
from edgert.steps import Product, Report, Step, to_json

TAKEN = "qdq.json"


def wants_cache(job: ModelJob) -> bool:
    """Whether a Q/DQ model's scales are of use: a DLA may run it, and its TensorRT reads calibration caches."""
    target = job.target
    runs_dla = target.uses_dla(job.config) and target.dla.release.answer != "no"
    return runs_dla and target.takes_cache and job.is_one_size


def take_apart_step(job: ModelJob, shaped: Product) -> Step:
    """The float model and the scales of a Q/DQ model. One that cannot be taken apart stays as it is, on the GPU, unless
    ``placement:`` asks for the DLA; the reason is in the report.

    Promises a model without Q/DQ, or the reason.
    """

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph import to_bytes
        from edgert.quantization.from_qdq import qdq_model

        try:
            found = qdq_model(job.model(shaped.files[MODEL]))
        except ModelError as error:
            if job.config.placement != "auto":
                raise
            report.note(f"no scales for a DLA: {error.what}: {error.why}")
            return {TAKEN: to_json({"refused": error.what})}
        for problem in found.problems:
            report.note(problem)
        taken = {"refused": "", "scales": dict(found.scales), "float_nodes": list(found.float_nodes)}
        return {MODEL: to_bytes(found.model), TAKEN: to_json(taken)}

    def promise(files: Mapping[str, bytes]) -> str:
        found = Product(files).json(TAKEN)
        if found["refused"]:
            return f"as it is: {found['refused']}"
        return f"{len(found['scales'])} scales of its Q/DQ nodes"

    asked = str(job.config.placement)
    return Step("take-apart", job.name, 1, [shaped.digest, asked == "auto", software()], make, promise)


def is_taken(taken: Product) -> bool:
    """Whether a model could be taken apart."""
    return not taken.json(TAKEN)["refused"]


def as_int8(job: ModelJob) -> ModelJob:
    """The job as what it is, an INT8 model whose scales must not be moved."""
    quantize = job.config.quantize.model_copy(update={"equalize": False})
    return replace(job, config=job.config.model_copy(update={"precision": "int8", "quantize": quantize}))


def qdq_cache_step(job: ModelJob, taken: Product, rewritten: Product) -> Step:
    """The calibration cache from a model's own scales. Promises that it reads back and names tensors of the model."""
    tensorrt = job.target.tensorrt

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph import read
        from edgert.quantization.from_qdq import propagate_scales
        from edgert.quantization.lowering.trt_cache import write_cache
        from edgert.quantization.scheme.trt_scheme import layer_precisions

        graph, found = read(job.model(rewritten.files[MODEL])), taken.json(TAKEN)
        scales, problems = propagate_scales(graph, {name: float(scale) for name, scale in found["scales"].items()})
        for problem in problems:
            report.note(problem)
        nodes = set(found["float_nodes"])
        half = [node.name for node in graph.nodes if node.name in nodes]
        try:
            option = layer_precisions(half)
        except CalibrationError:  # a comma or the like in a name: only the command line cannot say it
            option = ""
        return {
            CACHE: write_cache(scales, tensorrt).encode(),
            EXCEPTIONS: to_json({"half": half, "layer_precisions": option}),
        }

    def promise(files: Mapping[str, bytes]) -> str:
        from edgert.graph import read
        from edgert.quantization.lowering.lower import check_cache

        half = Product(files).json(EXCEPTIONS)["half"]
        return check_cache(files[CACHE].decode(), half, read(job.model(rewritten.files[MODEL])))

    return Step("lower", job.name, 1, ["Q/DQ", taken.digest, rewritten.digest, tensorrt], make, promise)
