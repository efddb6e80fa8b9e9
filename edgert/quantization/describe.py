"""Report and summary of a quantized model."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from edgert._version import __version__
from edgert.backend import backend
from edgert.board.host import core_count, cpu_name
from edgert.config import ModelConfig, PythonTask
from edgert.evaluation import EvaluationResult, compare, score
from edgert.graph import Model, load, to_bytes
from edgert.installation import version_of
from edgert.quantization import describe_layers, int8_model, quantizer
from edgert.quantization.calibration import ranges, threshold
from edgert.quantization.scheme.units import Target
from edgert.report.quantization_record import AccuracyRow, LayerRow, Missing, Note, Provenance, QuantizationReport

_ENGINES = {"ort": ("ONNX Runtime", "onnxruntime"), "openvino": ("OpenVINO", "openvino")}
_PACKAGES = ("onnx", "onnxruntime", "numpy")
_SECTIONS = ("calibrate", "quantize", "accuracy")
_STEPS = {
    "affine": ", all steps between the smallest and the largest value",
    "unsigned": ", from 0 where never negative",
    "symmetric": ", as many steps below zero as above",
}


def provenance(model: Model, table: ranges.RangeTable | None, method: str, command: str, source: str) -> Provenance:
    """Return the facts needed to reproduce a result."""
    versions = {"edgert": __version__} | {name: version_of(name) for name in _PACKAGES}
    cores = core_count()
    return Provenance(
        model=model.path.name,
        digest=model.digest,
        images=table.images if table is not None else None,
        source=source,
        method=method,
        command=command,
        versions={name: text for name, text in versions.items() if text},
        machine=f"{cpu_name()}, {cores} core{'s' if cores > 1 else ''}",
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )


def settings(config: ModelConfig, recipe: quantizer.Recipe | None = None) -> Mapping[str, str]:
    """Return the section's precision settings, and the stored types of activations and weights, by name."""
    found: dict[str, str] = {}
    for name in _SECTIONS:
        section = getattr(config, name)
        values = {} if section is None else section.model_dump(mode="json")
        for key, value in values.items():
            if isinstance(value, bool):
                value = str(value).lower()
            elif isinstance(value, list):
                value = f"[{', '.join(map(str, value))}]" if value else None
            if value is not None:
                found[f"{name}.{key}"] = str(value)
    if recipe is not None:
        found["activations"] = recipe.storage + (_STEPS[recipe.activation] if recipe.target == "ort" else "")
        found["weights"] = "int8, one scale per output channel"
    return found


def method_text(table: ranges.RangeTable, recipe: quantizer.Recipe) -> str:
    """Return the method of choosing thresholds as text: ``"mse"``, or ``"auto: …"`` for one per tensor."""
    shares = {"percentile": f"percentile {threshold.PERCENTILE:g}"}
    if not recipe.choose and not table.chosen:
        return shares.get(table.method, table.method)
    used = {table.chosen.get(name, table.method) for name in table.histograms}
    return f"auto: {', '.join(sorted(shares.get(name, name) for name in used))}"


def engine_text(config: ModelConfig) -> str:
    """Return name and version of the engine that runs the section's model: ``"ONNX Runtime 1.20.0"``."""
    name = backend(config.backend).name
    if name not in _ENGINES:
        return name
    title, package = _ENGINES[name]
    return f"{title} {version_of(package)}".strip()


METRICS: Mapping[str, str] = {
    "map": "mAP50-95",
    "map50": "mAP50",
    "top1": "top-1",
    "top5": "top-5",
    "miou": "mIoU",
    "retrieval": "rank-1",
    "mask_map": "mask mAP50-95",
    "obb_map": "OBB mAP50-95",
    "oks_map": "OKS mAP50-95",
    "cer": "CER",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "hota": "HOTA",
    "idf1": "IDF1",
}
"""Names of metrics in reports; others keep their names."""

TARGETS: Mapping[Target, str] = {"ort": "ONNX Runtime", "gpu": "TensorRT on a GPU", "dla": "TensorRT on a DLA"}

_SETTLED = "ranges settled"
"""Beginning of the only line among a table's warnings that is not a warning."""


def summary(outcome: int8_model.QuantizationResult) -> tuple[str, ...]:
    """Return the main facts as lines of text; layers are counted as in the report."""
    layers = describe_layers.layer_rows(outcome)
    others = Counter(layer.precision for layer in layers)
    done = others.pop("INT8", 0)
    rest = "".join(f"; {count} in {precision}" for precision, count in others.items())
    lines = [f"INT8: {done} of {len(layers)} layers{rest}"]
    if outcome.evaluation is not None:
        (drop,) = outcome.evaluation.comparisons
        data = "labeled images" if outcome.labeled else "calibration images"
        lines.append(
            f"{drop.metric} {drop.reference:.3f} → {drop.other:.3f} on {drop.images} {data} "
            f"(drop {drop.drop:+.3f}, 95 % interval {drop.low:+.3f} to {drop.high:+.3f})"
        )
    if outcome.search is not None and outcome.search.kept:
        lines.append(f"kept for accuracy: {', '.join(outcome.search.kept)}")
    return (*lines, *outcome.warnings, *outcome.table.warnings, *_loss(outcome, layers))


_LEAST_LOSS, _MOST_BLAMED = 0.005, 3
_NO_POINTS = ("psnr", "rmse")  # in decibels and meters


def _loss(outcome: int8_model.QuantizationResult, layers: Sequence[LayerRow]) -> Iterator[str]:
    """Yield the layers behind a loss of more than half a point, and how to keep them in higher precision."""
    drop = None if outcome.evaluation is None else outcome.evaluation.comparisons[0]
    if drop is None or drop.drop <= _LEAST_LOSS or drop.metric in _NO_POINTS:
        return
    blamed = sorted(
        (layer for layer in layers if layer.precision == "INT8" and (layer.cost, layer.sqnr_db) != (None, None)),
        key=lambda one: (one.cost is None, -(one.cost or 0), math.inf if one.sqnr_db is None else one.sqnr_db),
    )
    names = [layer.name for layer in blamed[:_MOST_BLAMED]]
    if not names:
        return
    higher = describe_layers.HIGHER[outcome.recipe.target]
    metric = METRICS.get(drop.metric, drop.metric)
    yield f"INT8 loses {100 * drop.drop:.1f} points of {metric}; these layers cost most: {', '.join(names)}"
    keep = " ".join(f"--keep {shlex.quote(name)}" for name in names)
    keys = json.dumps(names, ensure_ascii=False)
    yield f"to keep them in {higher}: {keep}, or in the pipeline file quantize: {{keep: {keys}}}"


def describe(
    outcome: int8_model.QuantizationResult,
    config: ModelConfig,
    *,
    command: str = "",
    source: str = "",
) -> QuantizationReport:
    """Return the report of a quantized model.

    The model's file is read again. Thresholds of every method are computed for each tensor, in up to 20 ms each. Raises
    EdgertError: the model's file cannot be read any more.
    """
    model, plan = load(config.onnx), outcome.quantized.scheme
    images = source or (str(config.calibrate.images) if config.calibrate else "")
    absent: dict[Missing, str] = {}
    if outcome.evaluation is None:
        by_user = "Accuracy was not measured, since the user's own code reads the outputs."
        absent["accuracy"] = by_user if isinstance(config.task, PythonTask) else "Accuracy was not measured."
    if not outcome.sqnr_db:
        absent["layers"] = "No layer's output could be compared with that of the float model."
    return QuantizationReport(
        provenance=provenance(model, outcome.table, method_text(outcome.table, outcome.recipe), command, images),
        target=TARGETS[plan.target],
        accuracy=() if outcome.evaluation is None else accuracy_rows(outcome.evaluation, outcome.labeled),
        sizes_bytes=sizes_bytes({"FP32": model, "INT8": outcome.model}),
        layers=describe_layers.layer_rows(outcome),
        cost_meaning=describe_layers.COST_MEANING if outcome.scan else "",
        tensors=describe_layers.tensor_rows(outcome.table, plan),
        notes=tuple(_notes(outcome)),
        settings=settings(config, outcome.recipe),
        absent=absent,
    )


def accuracy_rows(
    evaluation: EvaluationResult, labeled: bool, names: Mapping[str, str] | None = None
) -> tuple[AccuracyRow, ...]:
    """Return every metric of every version but the reference, the main metric of each first.

    ``names`` are precisions by version; None for ``INT8``.
    """
    rows: list[AccuracyRow] = []
    reference, *others = evaluation.results
    for result, main in zip(others, evaluation.comparisons, strict=True):
        further = [name for name in result.values if name != main.metric and name in reference.values]
        found = [main, *(compare(reference, result, name) for name in further)]
        precision = "INT8" if names is None else names[result.name]
        rows += [
            AccuracyRow(
                METRICS.get(one.metric, one.metric),
                one.reference,
                one.other,
                precision,
                (one.low, one.high) if one.low == one.low else None,  # NaN where no sample had a score
                one.max_drop,
                one.images,
                "plain" if one.metric in ("cosine", *_NO_POINTS) else "percent",
                labeled,
                one.metric in score.LOWER_IS_BETTER,
            )
            for one in found
        ]
    return tuple(rows)


def sizes_bytes(models: Mapping[str, Model]) -> Mapping[str, int]:
    """Return the bytes of each model as one file, weights included, by name."""
    return {name: len(to_bytes(model)) for name, model in models.items()}


def _notes(outcome: int8_model.QuantizationResult) -> Iterator[Note]:
    for text in (*outcome.warnings, *outcome.table.warnings):
        yield Note(_sentence(text), level="note" if text.startswith(_SETTLED) else "warning")
    if outcome.search is not None:
        yield Note(_sentence(outcome.search.reason), level="note" if outcome.search.is_complete else "warning")
    if outcome.scan is not None and (missing := sum(cost is None for cost in outcome.scan.values())):
        yield Note(f"Time ran out before the cost of {missing} of {len(outcome.scan)} layers was measured.")
    yield from (Note(_sentence(text), level="note") for text in outcome.quantized.notes)
    yield from describe_layers.floating_notes(outcome)


def _sentence(text: str) -> str:
    start = text[:1].upper() + text[1:]
    return start if start.endswith(".") else f"{start}."
