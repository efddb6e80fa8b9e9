"""The report of an evaluation: several versions of one model, and one of them in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgert.board.host import cpu_name
from edgert.config import ModelConfig
from edgert.evaluation import Accuracy, Standing
from edgert.graph.load import load
from edgert.graph.model import Model
from edgert.quantization.describe import accuracy_rows, describe, engine_text, provenance, settings, sizes_bytes
from edgert.quantization.variants import Version
from edgert.report import Note, Part, QuantizationReport, SpeedRow
from edgert.report.quantization_record import REFERENCE

_SIMULATION = Note(
    "Simulated: this is the arithmetic that is publicly known of such a device, not a measurement of one. "
    "Examine the model on the device before relying on it."
)
_NO_SPEED = "Not measured: a simulation takes longer than anything real would."


def evaluation_report(
    standing: Standing,
    versions: Mapping[str, Version],
    others: Mapping[str, Model],
    config: ModelConfig,
    *,
    labeled: bool,
    command: str = "",
) -> QuantizationReport:
    """What an evaluation found. The first INT8 version is told of layer by layer; all are, in accuracy.

    Args:
        standing: of the float model and every version, by name.
        versions: those made here.
        others: name → versions that came as files.
        labeled: whether labels told what is true.

    Raises:
        EdgertError: the model's file cannot be read any more, or ONNX Runtime cannot run a version.
    """
    main = next((one for one in versions.values() if one.quantized is not None), None)
    labels = {name: name for name in others} | {name: one.precision for name, one in versions.items()}
    if main is None:
        report = _of_files(config, labels, command)
    else:
        labels[main.name] = "INT8"
        report = _in_detail(main, labeled, command)
    models = {labels[name]: one.run for name, one in versions.items() if isinstance(one.run, Model)}
    models |= {labels[name]: model for name, model in others.items()}
    return replace(
        report,
        accuracy=accuracy_rows(standing, labeled, labels),
        speed=_speed(standing, labels, versions, config),
        sizes_bytes=sizes_bytes({REFERENCE: load(config.onnx), **models} if models else {}),
    )


def _in_detail(main: Version, labeled: bool, command: str) -> QuantizationReport:
    assert main.quantized is not None
    made = main.quantized
    report = describe(made.outcome(None, labeled), made.config, command=command, source=made.source)
    if not main.simulated:
        return report
    absent: dict[Part, str] = {"speed": _NO_SPEED, "corrections": "What was changed cannot be read off a simulation."}
    return replace(report, target=f"{report.target}, simulated", notes=(_SIMULATION, *report.notes), absent=absent)


def _of_files(config: ModelConfig, labels: Mapping[str, str], command: str) -> QuantizationReport:
    reason = "Layers, activations and corrections are known of models that edgert quantized itself: --precision int8."
    return QuantizationReport(
        provenance(load(config.onnx), None, "", command, ""),
        precision=next(iter(labels.values()), REFERENCE),
        settings=settings(config),
        absent={"layers": reason, "tensors": reason, "corrections": reason},
    )


def _speed(
    standing: Standing, labels: Mapping[str, str], versions: Mapping[str, Version], config: ModelConfig
) -> tuple[SpeedRow, ...]:
    """Times of the evaluation's own runs, but for simulations: those take longer than anything real would."""
    first, *rest = standing.results
    real = [one for one in rest if one.name not in versions or not versions[one.name].simulated]
    rows = [_row(first, REFERENCE, config), *(_row(one, labels[one.name], config) for one in real)]
    return tuple(rows) if real else ()


def _row(result: Accuracy, precision: str, config: ModelConfig) -> SpeedRow:
    machine = f"{cpu_name()}, 1 thread a run, {result.threads} at a time"
    return SpeedRow(precision, result.run_ms, result.images, engine_text(config), machine)
