"""The steps from an ONNX file to the model that is quantized and compiled: load, shapes, rewrite, verify.

The last step compares every form of a model with the model before all rewriting.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.compiler.build_target import COMPARED_IMAGES, MODEL, ModelJob, software
from edgert.config import ModelConfig
from edgert.dataset import feed_of
from edgert.engine import check_open, default_profile
from edgert.errors import BuildError, ModelError
from edgert.evaluation.final_boxes import BoxAgreement, agreement, has_final_boxes
from edgert.graph import Model, clean, inputs, inspect, load, read, to_bytes
from edgert.graph.load import read_file
from edgert.quantization.run import is_quantized
from edgert.steps import Product, Report, Step, to_json

FACTS, CHANGES, PORTS, QUALITY = "facts.json", "changes.json", "ports.json", "quality.json"
REWRITE_TOLERANCE = 1e-3
"""Largest accepted difference of a rewritten model's outputs, relative to the largest output. Float32 sums in another
order differ by about 1e-5, wrong rewrites by far more."""
NEGLIGIBLE = 1e-6
"""Absolute difference that never counts; probabilities near 0 have large relative differences without any effect."""
TOLERANCE: Mapping[str, float] = {"float": 1e-3, "fp16": 2e-2, "ort": 0.7, "gpu": 0.7, "dla": 0.7}
"""Form → largest RMS difference of its outputs from the reference's, relative to the reference's RMS, over all outputs
and images. For INT8 the noise must have at most half the signal's power (3 dB). YOLOX-nano for the DLA, calibrated on
16 photos, has 0.43; unrelated outputs have 1.0 and more. This checks the build; ``accuracy:`` with labels checks the
accuracy."""
BOXES_TOLERANCE: Mapping[str, float] = {"float": 0.05, "fp32": 0.05, "fp16": 0.2}
"""Form or precision → largest fraction of final boxes without a match in the reference; for INT8
:data:`BOXES_TOLERANCE_INT8`. After suppression the last bit may change the order of boxes, so numbers are not
compared."""
BOXES_TOLERANCE_INT8 = 0.5
_PROOFS = 2
_BOARD_BATCH = (
    "models in a bundle for a board have one size, as a DLA requires; with larger batches than that size it does not "
    "run there"
)


def load_step(job: ModelJob) -> Step:
    """Return the step that reads and checks the file. It promises the facts that other steps depend on."""
    path = job.config.onnx

    def make(report: Report) -> Mapping[str, bytes]:
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
        """Return whether the product is still valid, as the file's digest does not cover external weights."""
        digest = product.json(FACTS)["digest"]
        return bool(digest == file_digest or digest == load(path).digest)

    return Step("load", job.name, 1, {"file": file_digest, "software": software()}, make, promise, holds)


def _content(job: ModelJob) -> bytes:
    """Return the file's bytes. They are read without ONNX, which a build of cached steps need not import."""
    path = job.config.onnx
    try:
        return path.read_bytes()
    except OSError:
        try:
            return read_file(path)  # raises an error that explains the problem
        except ModelError as error:
            raise error.at(job.where)  # noqa: B904 - the same error, with its place


def shapes_step(job: ModelJob, loaded: Product) -> Step:
    """Return the step that fixes dynamic dimensions and folds constants.

    It promises static shapes, unless the model keeps several sizes.
    """
    facts = loaded.json(FACTS)
    config = job.config
    sizes: dict[str, Any] = {"profiles": config.model_dump(mode="json", include={"profiles"})["profiles"]}
    if job.batched:
        sizes["batch"] = "open" if job.keeps_batch else "of a bundle"
    if not facts["is_static"] or config.input.shape.extents:
        sizes |= {key: job.input_data()[key] for key in ("size", "shape", "layout", "color")}
        sizes["why"] = job.why_usual_size

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.graph.dla_rewrites.apply import prepare_for_dla

        model = load(config.onnx)
        check_open(model, config)
        if job.why_usual_size:
            report.note(f"built only at the usual size of input: shape: {job.why_usual_size}")
        if job.batched and not job.keeps_batch:
            report.note(f"batch: {_BOARD_BATCH}")
        if facts["is_quantized"] or not job.is_one_size:
            return {MODEL: to_bytes(clean(model)[0])}
        shapes = next(iter((config.profiles or default_profile(model, config)).values()))
        return {MODEL: to_bytes(prepare_for_dla(model, shapes))}

    def promise(files: Mapping[str, bytes]) -> str:
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
    """Return the step that rewrites a model for a DLA and equalizes layers if requested. It promises equal outputs."""
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
        from edgert.graph.dla_rewrites.apply import fit_model, remaining_rewrites
        from edgert.quantization.batched import open_batch
        from edgert.quantization.calibrated import calibration_shapes, prepare
        from edgert.quantization.quantizer import equalize_model

        model, changes = job.model(shaped.files[MODEL]), []
        if rewrites["fit"]:
            model, found = fit_model(model, remaining_rewrites(config.skip_rewrites, f"{job.where}.skip_rewrites"))
            changes = [asdict(change) for change in found]
        if rewrites["prepare"]:
            model = prepare(model, calibration_shapes(model, config) if rewrites.get("open") else None)
        if rewrites["equalize"]:
            model = equalize_model(model)
        if rewrites.get("open"):
            model = open_batch(model, file=job.model(shaped.files[MODEL]))
        graph = read(model)
        ends = {"inputs": graph.inputs, "outputs": graph.outputs}
        ports: dict[str, Any] = {kind: [asdict(spec) for spec in specs] for kind, specs in ends.items()}
        ports["nodes"] = [node.name for node in graph.nodes]
        return {MODEL: to_bytes(model), CHANGES: to_json(changes), PORTS: to_json(ports)}

    def promise(files: Mapping[str, bytes]) -> str:
        changes = len(Product(files).json(CHANGES))
        if files[MODEL] == shaped.files[MODEL]:
            return "nothing to do"
        apart = _difference(job, shaped.files[MODEL], files[MODEL])
        return f"{changes} changes; outputs {apart:.1e} apart (at most {REWRITE_TOLERANCE:g})"

    return Step("rewrite", job.name, 2, [shaped.digest, rewrites, software()], make, promise)


def _difference(job: ModelJob, before: bytes, after: bytes) -> float:
    """Return the relative difference of two models' outputs, or the absolute one if it is negligible.

    Raises:
        BuildError: the difference exceeds the tolerance.
    """
    from edgert.graph.dla_rewrites.apply import prove

    first, second = job.model(before), job.model(after)
    boxes = boxes_apart(first, second, uniform_feeds(second, job.config, _PROOFS))
    if boxes is not None and boxes <= BOXES_TOLERANCE["float"]:
        return boxes
    functions = {id(model): Function(model) for model in (first, second)}
    found = prove(
        first,
        second,
        uniform_feeds(second, job.config, _PROOFS),  # the second has a size where the first leaves it dynamic
        lambda model, feed: list(functions[id(model)](feed).values()),
    )
    if found.error <= NEGLIGIBLE:
        return found.error
    if not found.relative <= REWRITE_TOLERANCE:
        raise BuildError(
            f"rewriting model {job.name!r} changed what it computes",
            why=f"outputs differ by {found.relative:.2g} of the largest value; {REWRITE_TOLERANCE:g} is accepted",
            where=job.where,
            fix="placement: gpu leaves the model as it is; please report the model",
        )
    return found.relative


def uniform_feeds(model: Model, config: ModelConfig, count: int) -> Iterator[Mapping[str, Array]]:
    """Yield the same inputs in every call, uniform over the range of the section's preprocessing.

    Dynamic dimensions have the sizes of the first profile.
    """
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


def verify_step(job: ModelJob, shaped: Product, forms: Mapping[str, Product], judged: bool) -> Step:
    """Return the step that compares all forms with the model before all rewriting.

    It promises outputs within :data:`TOLERANCE`.

    Args:
        job: the model and its target.
        shaped: reference model.
        forms: forms by name.
        judged: whether labels decide instead, so that an error beyond the tolerance is only reported.
    """
    parts = {name: form.digest for name, form in forms.items()}
    facts = [shaped.digest, parts, job.images_digest, job.input_data(), dict(TOLERANCE), judged, software()]

    def make(report: Report) -> Mapping[str, bytes]:
        reference = job.model(shaped.files[MODEL])
        feeds, function = list(typical_feeds(job, reference)), Function(reference, fused=True)
        expected, found = [function(feed) for feed in feeds], {}
        for name, form in forms.items():
            fused = name in ("float", "fp16", "ort")  # in TensorRT's forms, Q/DQ pairs are computed as in the standard
            function = Function(job.model(form.files[MODEL]), fused=fused)
            apart = distance(expected, [function(feed) for feed in feeds])
            found[name] = {"tolerance": tolerance(apart, TOLERANCE[name], name), **apart}
        return {QUALITY: to_json({"images": len(feeds), "forms": found})}

    def promise(files: Mapping[str, bytes]) -> str:
        parts = []
        for name, row in Product(files).json(QUALITY)["forms"].items():
            error = row["relative_error"]
            if not judged and (error is None or error > row["tolerance"]):
                found = "a relative error that is not finite" if error is None else f"relative error {error:.2g}"
                raise BuildError(
                    f"the outputs of the {name} form of model {job.name!r} differ too much from the model's",
                    why=f"{row.get('boxes') or found}, at most {row['tolerance']:g} is accepted",
                    where=job.where,
                    fix="calibrate on images like those it will see; name layers in quantize: {keep: …}; or set "
                    "accuracy: with labels, which then decide",
                )
            parts.append(f"{name} {error:.2g}" if error is not None else f"{name} not finite")
            parts[-1] += f" ({row['boxes']})" if "boxes" in row else ""
        return "relative error " + ", ".join(parts)

    return Step("verify", job.name, 1, facts, make, promise)


def typical_feeds(job: ModelJob, model: Model) -> Iterator[Mapping[str, Array]]:
    """Yield a few preprocessed images; for a model with other inputs, random numbers."""
    specs = inputs(model)
    if len(specs) != 1 or len(specs[0].shape) != 4:
        yield from uniform_feeds(model, job.config, COMPARED_IMAGES)
        return
    feed = feed_of(job.images, model, job.config)
    for index in range(min(COMPARED_IMAGES, len(feed))):
        yield feed.feeds(index)


def distance(wanted: Sequence[Mapping[str, Array]], made: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
    """Return the relative error of all outputs together and of each; None if it is not finite or shapes differ.

    For a detector's final boxes it is the fraction without a match, described in ``boxes``.
    """
    if has_final_boxes(wanted[0]):
        pairs = [agreement(one, other) for one, other in zip(wanted, made, strict=True)]
        found = sum((pair for pair in pairs if pair is not None), BoxAgreement(0, 0, 0))
        error = None if None in pairs else float(f"{1 - found.share:.6g}")
        return {"relative_error": error, "outputs": {}, "boxes": str(found)}
    sums = {
        name: [_sums(one[name], other.get(name)) for one, other in zip(wanted, made, strict=True)] for name in wanted[0]
    }
    outputs = {name: _relative([sum(part) for part in zip(*pairs, strict=True)]) for name, pairs in sums.items()}
    everything = [sum(part) for part in zip(*(pair for pairs in sums.values() for pair in pairs), strict=True)]
    return {"relative_error": _relative(everything), "outputs": outputs}


def tolerance(found: Mapping[str, Any], numbers: float, form: str) -> float:
    """Return the tolerance for a result of :func:`distance`: ``numbers``, or that for final boxes."""
    return BOXES_TOLERANCE.get(form, BOXES_TOLERANCE_INT8) if "boxes" in found else numbers


def boxes_apart(first: Model, second: Model, feeds: Iterable[Mapping[str, Array]]) -> float | None:
    """Return the fraction of two models' final boxes without a match; None for models without final boxes."""
    functions, kept = (Function(first), Function(second)), list(feeds)
    if not has_final_boxes(functions[0](kept[0])):
        return None
    wanted, made = ([function(feed) for feed in kept] for function in functions)
    error = distance(wanted, made)["relative_error"]
    return None if error is None else float(error)


def _sums(wanted: Array, made: Array | None) -> tuple[float, float]:
    """Return Σ x² and Σ (x - y)² over finite numbers of the reference; negligible differences count as 0."""
    if made is None or made.shape != wanted.shape:
        return 0.0, math.inf
    known = np.isfinite(wanted)
    first, second = wanted[known].astype(np.float64), made[known].astype(np.float64)
    noise = float(np.square(first - second).sum())
    return float(np.square(first).sum()), noise if noise > first.size * NEGLIGIBLE**2 else 0.0


def _relative(sums: Sequence[float]) -> float | None:
    signal, noise = sums
    error = math.sqrt(noise / signal) if signal else math.sqrt(noise)
    return float(f"{error:.6g}") if math.isfinite(error) else None
