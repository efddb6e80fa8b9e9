"""The steps from an ONNX file to the model that is quantized and compiled: load, shapes, rewrite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.compiler.model_job import MODEL, ModelJob, software
from edgert.config import ModelConfig
from edgert.errors import BuildError, ModelError
from edgert.steps import Product, Report, Step, to_json

if TYPE_CHECKING:
    from edgert.backend.base import Array
    from edgert.graph import Model

FACTS, CHANGES, PORTS = "facts.json", "changes.json", "ports.json"
REWRITE_TOLERANCE = 1e-3
"""A rewritten model's outputs may differ by so much of the largest: float32 sums in another order differ by some 1e-5,
a wrong rewrite by far more."""
NEGLIGIBLE = 1e-6
"""A difference below this is none, however small the outputs are: probabilities that are all but 0 differ by much of
themselves without any visible effect."""
_PROOFS = 2
_BOARD_BATCH = (
    "a bundle for a board has models of one size, as a DLA must: with more frames in batch than that size has, it will "
    "not run there"
)


def load_step(job: ModelJob) -> Step:
    """Reads and checks the file. Promises a model whose inputs, outputs and digest are known."""
    path = job.config.onnx

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph import inspect, load
        from edgert.quantization.scheme.units import is_quantized

        model = load(path)
        found = inspect(model)
        facts = {
            "digest": model.digest,
            "opset": found.opset,
            "nodes": found.nodes,
            "is_quantized": is_quantized(model),
            "is_static": all(spec.is_static for spec in found.inputs),
        }
        return {FACTS: to_json(facts)}

    def promise(files: Mapping[str, bytes]) -> str:
        facts = Product(files).json(FACTS)
        return f"opset {facts['opset']}, {facts['nodes']} nodes"

    file_digest = hashlib.sha256(_content(job)).hexdigest()

    def holds(product: Product) -> bool:
        """External weights are not in the file's digest."""
        digest = product.json(FACTS)["digest"]
        return bool(digest == file_digest or digest == _digest(path))

    return Step("load", job.name, 1, {"file": file_digest, "software": software()}, make, promise, holds)


def _digest(path: Path) -> str:
    from edgert.graph import load

    return load(path).digest


def _content(job: ModelJob) -> bytes:
    """The file's bytes, without importing what reads models: a build that finds all its steps done needs none of it."""
    path = job.config.onnx
    try:
        return path.read_bytes()
    except OSError:
        from edgert.graph.load import read_file

        try:
            return read_file(path)  # which explains what is wrong
        except ModelError as error:
            raise error.at(job.where)  # noqa: B904 - the same error, with its place


def shapes_step(job: ModelJob, loaded: Product) -> Step:
    """Fixes open dimensions and folds what then is constant. Promises static shapes, unless profiles name several."""
    facts = loaded.json(FACTS)
    config = job.config
    sizes: dict[str, Any] = {"profiles": config.model_dump(mode="json", include={"profiles"})["profiles"]}
    if job.batched:
        sizes["batch"] = "open" if job.keeps_batch else "of a bundle"
    if not facts["is_static"] or config.input.shape.extents:
        sizes |= {key: job.seen()[key] for key in ("size", "shape", "layout", "color")} | {"why": job.pinned}

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.engine import check_open, default_profile
        from edgert.graph import clean, load, to_bytes
        from edgert.graph.dla_rewrites import ready

        model = load(config.onnx)
        check_open(model, config)
        if job.pinned:
            report.note(f"built at the usual size of input: shape: {job.pinned}")
        if job.batched and not job.keeps_batch:
            report.note(f"batch: {_BOARD_BATCH}")
        if facts["is_quantized"] or not job.is_one_size:
            return {MODEL: to_bytes(clean(model)[0])}
        shapes = next(iter((config.profiles or default_profile(model, config)).values()))
        return {MODEL: to_bytes(ready(model, shapes))}

    def promise(files: Mapping[str, bytes]) -> str:
        from edgert.graph import inputs

        specs = inputs(job.model(files[MODEL]))
        shown = ", ".join(map(str, specs))
        if not job.is_one_size:
            return f"{len(config.profiles)} profiles of {shown}" if config.profiles else f"open: {shown}"
        for spec in specs:
            if not spec.is_static:
                raise ModelError(
                    f"input {spec.name!r} has open dimensions: {spec}",
                    why="a bundle holds a model at one size, or at those of its profiles",
                    where=job.where,
                    fix="input: {size: WIDTHxHEIGHT}, or profiles",
                )
        return shown

    return Step("shapes", job.name, 1, [facts["digest"], sizes, software()], make, promise)


def rewrite_step(job: ModelJob, shaped: Product, is_quantized: bool) -> Step:
    """Rewrites for a DLA, and cross-layer equalization where it is requested. Promises the same outputs."""
    config, int8 = job.config, job.precision == "int8" and not is_quantized
    rewrites: dict[str, Any] = {
        "fit": job.target.uses_dla(config) and job.is_one_size and not is_quantized,
        "prepare": int8,
        "equalize": int8 and config.quantize.equalize,
    }
    if int8 and job.keeps_batch:
        rewrites["open"] = True
    if config.skip_rewrites:
        rewrites["skip"] = config.skip_rewrites

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph import to_bytes
        from edgert.graph.dla_rewrites import fit_model, without
        from edgert.quantization.batched import opened
        from edgert.quantization.calibrated import one_size, prepare
        from edgert.quantization.quantizer import equalized

        model, changes = job.model(shaped.files[MODEL]), []
        if rewrites["fit"]:
            model, found = fit_model(model, without(config.skip_rewrites, f"{job.where}.skip_rewrites"))
            changes = [asdict(change) for change in found]
        if rewrites["prepare"]:
            model = prepare(model, one_size(model, config) if rewrites.get("open") else None)
        if rewrites["equalize"]:
            model = equalized(model)
        if rewrites.get("open"):
            model = opened(model, file=job.model(shaped.files[MODEL]))
        return {MODEL: to_bytes(model), CHANGES: to_json(changes), PORTS: to_json(_ports(model))}

    def promise(files: Mapping[str, bytes]) -> str:
        changes = len(Product(files).json(CHANGES))
        if files[MODEL] == shaped.files[MODEL]:
            return "nothing to do"
        apart = _apart(job, shaped.files[MODEL], files[MODEL])
        return f"{changes} changes; outputs {apart:.1e} apart (at most {REWRITE_TOLERANCE:g})"

    return Step("rewrite", job.name, 1, [shaped.digest, rewrites, software()], make, promise)


def _ports(model: Model) -> dict[str, Any]:
    """What goes in, what comes out, and the names of the nodes between."""
    from edgert.graph import read

    graph = read(model)
    ports = {
        kind: [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)} for spec in specs]
        for kind, specs in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }
    return {**ports, "nodes": [node.name for node in graph.nodes]}


def _apart(job: ModelJob, before: bytes, after: bytes) -> float:
    """The relative distance of two models' outputs; the absolute one where that is next to nothing. Raises BuildError
    beyond the tolerance."""
    from edgert.backend.ort import Function
    from edgert.graph.dla_rewrites import prove

    first, second = job.model(before), job.model(after)
    functions = {id(model): Function(model) for model in (first, second)}
    found = prove(
        first,
        second,
        random_feeds(job, after, _PROOFS),  # which has a size where the first leaves it open
        lambda model, feed: list(functions[id(model)](feed).values()),
    )
    if found.error <= NEGLIGIBLE:
        return found.error
    if not found.relative <= REWRITE_TOLERANCE:
        raise BuildError(
            f"rewriting model {job.name!r} changed what it computes",
            why=f"outputs are {found.relative:.2g} of the largest apart, at most {REWRITE_TOLERANCE:g} is accepted",
            where=job.where,
            fix="placement: gpu leaves the model as it is; please report the model",
        )
    return found.relative


def random_feeds(job: ModelJob, content: bytes, count: int) -> Iterator[Mapping[str, Array]]:
    """See :func:`uniform_feeds`, for a model's bytes."""
    yield from uniform_feeds(job.model(content), job.config, count)


def uniform_feeds(model: Model, config: ModelConfig, count: int) -> Iterator[Mapping[str, Array]]:
    """Inputs that are the same every time: uniform over the range that the section's preprocessing yields.

    Open dimensions have the sizes of the first profile.
    """
    import numpy as np

    from edgert.graph import inputs

    specs = inputs(model)
    profile = next(iter(config.profiles.values()), {})
    rng = np.random.default_rng(0)
    mean, std = np.mean(config.input.mean), np.mean(config.input.std)
    low, high = float((0 - mean) / std), float((255 - mean) / std)
    for _ in range(count):
        feeds = {}
        for spec in specs:
            shape = profile.get(spec.name) or tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape)
            values = rng.uniform(low, high, shape) if spec.dtype.startswith("float") else rng.integers(0, 2, shape)
            feeds[spec.name] = np.asarray(values).astype(spec.dtype)
        yield feeds
