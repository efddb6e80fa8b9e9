"""Conversion of a model to INT8, to FP16, or to the fastest precision that is accurate enough."""

from collections.abc import Callable, Mapping

from edgert.config import ModelConfig
from edgert.engine import default_profile
from edgert.errors import ModelError
from edgert.graph import Model, batch_size, clean, read, with_shapes, write
from edgert.quantization import describe, int8_model, quantizer, run
from edgert.quantization.batched import PAIR, accepts_several, open_batch
from edgert.quantization.calibrated import CalibratedModel, calibrate_section
from edgert.quantization.fp16.to_fp16 import to_fp16


def fp16_model(model: Model, config: ModelConfig, *, open_batch: bool = False) -> tuple[Model, dict[str, str]]:
    """Return the model in float16, and the reasons of nodes that stay float32, by name.

    Nodes of ``quantize: {keep: …}`` stay float32, and so do nodes whose values float16 cannot hold. Without
    ``open_batch``, an open batch size becomes that of the section, or 1. Raises ModelError: dimensions stay open, or
    the model is quantized. Raises CalibrationError: ``keep`` matches no node.
    """
    if run.is_quantized(model):
        raise ModelError("a quantized model has no float16 form", where=str(model.path), fix="give the float32 model")
    if len(config.profiles) > 1:
        raise ModelError(
            f"a model with {len(config.profiles)} profiles is converted at one size",
            why="which nodes overflow is decided from shapes",
            where=str(model.path),
            fix="leave one profile, or precision: fp32",
        )
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    ready, _ = clean(with_shapes(model, shapes, open_batch=open_batch) if shapes else model)
    graph = read(ready)
    keep = quantizer.match_names(config.quantize.keep, [node.name for node in graph.nodes], "quantize.keep")
    made, kept = to_fp16(graph, keep=keep)
    return write(made, ready), kept


def _make_int8(model: Model, config: ModelConfig, job: run.Job) -> Model:
    calibrated = _calibrate(config, job)
    # raises before minutes are spent on measuring accuracy
    is_open = _open_float_batch(model, calibrated, job) is not None
    made = _quantize(config, calibrated, job, strict=True).model
    return _open_batch(made, calibrated) if is_open else made


def _make_fastest(model: Model, config: ModelConfig, job: run.Job) -> Model:
    """Return the fastest version that is accurate enough; measure accuracy, which takes minutes, only if needed."""
    from edgert.quantization.throughput import fastest

    calibrated = _calibrate(config, job)
    try:
        opened = _open_float_batch(model, calibrated, job)
    except ModelError as error:
        if not accepts_several(model, calibrated.feeds(PAIR)):
            raise
        taken = "fp32" if job.target == "ort" else "fp16"
        job.run.log(f"precision: auto takes {taken}: INT8 would take one image at a time: {error.why}")
        return model if job.target == "ort" else _make_fp16(model, config, job)
    plain = model if opened is None or batch_size.has_open_batch(model) else opened
    rows = 1 if opened is None else job.rows

    def ready(made: Model) -> Model:
        return made if opened is None else _open_batch(made, calibrated)

    if job.target != "ort":
        outcome = _quantize(config, calibrated, job, strict=False)
        return ready(outcome.model) if outcome.is_sound else _make_fp16(model, config, job)
    rough = fastest({"fp32": plain, "int8": ready(int8_model.round_only_model(config, calibrated))}, config, batch=rows)
    if rough.name == "fp32":
        job.run.log(f"precision: auto takes fp32: {rough.times}")
        return plain
    outcome = _quantize(config, calibrated, job, strict=False)
    if not outcome.is_sound:
        job.run.log("precision: auto takes fp32: INT8 would be faster and is not accurate enough")
        return plain
    choice = fastest({"fp32": plain, "int8": ready(outcome.model)}, config, batch=rows)
    job.run.log(f"precision: auto takes {choice.name}: {choice.times}")
    return choice.model


def _open_float_batch(model: Model, calibrated: CalibratedModel, job: run.Job) -> Model | None:
    """Return the float model with an open batch; None where one image is run at a time.

    Crops are run one by one where the model takes no more. Raises ModelError: the model must run in batches, and
    cannot.
    """
    if job.rows == 1 or not (job.batched or batch_size.has_open_batch(model)):
        return None
    try:
        return _open_batch(calibrated.model, calibrated, file=model)
    except ModelError as error:
        if job.batched:
            raise error.at(job.run.where)  # noqa: B904 - the same error, with its place
        job.run.log(f"INT8 takes crops one by one: {error.why}")
        return None


def _open_batch(made: Model, calibrated: CalibratedModel, *, file: Model | None = None) -> Model:
    return open_batch(made, calibrated.feeds(PAIR), file=file)


def _calibrate(config: ModelConfig, job: run.Job) -> CalibratedModel:
    if config.calibrate is not None:
        job.run.log(f"calibrating {config.onnx.name} (once: it is cached)")
    return calibrate_section(config, target=job.target, run=job.run)


def _quantize(
    config: ModelConfig, calibrated: CalibratedModel, job: run.Job, *, strict: bool
) -> int8_model.QuantizationResult:
    outcome = int8_model.quantize_section(config, calibrated, target=job.target, run=job.run, strict=strict)
    for text in describe.summary(outcome):
        job.run.log(text)
    return outcome


def _make_fp16(model: Model, config: ModelConfig, job: run.Job) -> Model:
    made, kept = fp16_model(model, config, open_batch=job.rows > 1)
    for name, reason in list(kept.items())[:1]:
        job.run.log(f"fp16: {len(kept)} nodes stay fp32, the first {name}: {reason}")
    return made


MAKERS: Mapping[str, Callable[[Model, ModelConfig, run.Job], Model]] = {
    "int8": _make_int8,
    "auto": _make_fastest,
    "fp16": _make_fp16,
}
