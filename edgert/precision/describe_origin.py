"""Where a report's numbers come from: settings, versions, machine, and the times that were taken here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version

from edgert import __version__
from edgert.backend import backend
from edgert.board.cpu import cpu_name
from edgert.board.host import core_count
from edgert.config import ModelConfig
from edgert.graph.model import Model
from edgert.precision.speed import run_ms
from edgert.quantize.recipe import Recipe
from edgert.quantize.table import RangeTable
from edgert.report import Provenance, SpeedRow

ROUNDS = 60
"""Runs of each version for a report, which tells percentiles too."""

_ENGINES = {"ort": ("ONNX Runtime", "onnxruntime"), "openvino": ("OpenVINO", "openvino")}
_PACKAGES = ("onnx", "onnxruntime", "numpy")
_SECTIONS = ("calibrate", "quantize", "accuracy")


_STEPS = {
    "affine": ", all steps between the smallest and the largest value",
    "unsigned": ", from 0 where never negative",
    "symmetric": ", as many steps below zero as above",
}


def speed_rows(
    versions: Mapping[str, Model], config: ModelConfig, threads: int | None = None, rounds: int = ROUNDS
) -> tuple[SpeedRow, ...]:
    """Times one run of each version, in turns, on the section's backend.

    Args:
        versions: ``FP32``, ``INT8`` → model.
        threads: of one run; the section's, else all cores, by default.

    Raises:
        BuildError: the backend refuses a version.
    """
    count = threads or config.threads or core_count()
    found = run_ms(versions, config, count, rounds)
    engine, machine = engine_text(config), f"{cpu_name()}, {count} thread{'s' if count > 1 else ''}"
    return tuple(
        SpeedRow(name, one.median_ms, one.runs, engine, machine, (one.low_ms, one.high_ms))
        for name, one in found.items()
    )


def provenance(model: Model, table: RangeTable | None, method: str, command: str, source: str) -> Provenance:
    """Enough to make the result again.

    Args:
        model: as its file is.
        table: the ranges, if there are any.
        method: of choosing thresholds, in words.
        command: as it was typed.
        source: where the calibration pictures came from.
    """
    versions = {"edgert": __version__} | {name: _version(name) for name in _PACKAGES}
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


def settings(config: ModelConfig, recipe: Recipe | None = None) -> Mapping[str, str]:
    """What the section says of precision, and how activations and weights are stored."""
    found: dict[str, str] = {}
    for name in _SECTIONS:
        section = getattr(config, name)
        values = {} if section is None else section.model_dump(mode="json")
        found |= {f"{name}.{key}": _text(value) for key, value in values.items() if value not in (None, [])}
    if recipe is not None:
        found["activations"] = recipe.storage + (_STEPS[recipe.activation] if recipe.target == "ort" else "")
        found["weights"] = "int8, one scale per output channel" if recipe.per_channel else "int8, one scale each"
    return found


def method_text(table: RangeTable, recipe: Recipe) -> str:
    """How thresholds were chosen: ``"mse"``; ``auto`` where each tensor has its own method."""
    shares = {"percentile": f"percentile {table.percentile:g}"}
    if not recipe.choose and not table.chosen:
        return shares.get(table.method, table.method)
    used = {table.chosen.get(name, table.method) for name in table.histograms}
    return f"auto: {', '.join(sorted(shares.get(name, name) for name in used))}"


def engine_text(config: ModelConfig) -> str:
    """What runs the section's model: ``"ONNX Runtime 1.20.0"``."""
    name = backend(config.backend).name
    title, package = _ENGINES.get(name, (name, ""))
    return f"{title} {_version(package)}".strip()


def _version(package: str) -> str:
    """Of an installed package, without importing it; empty for one that is not there."""
    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""


def _text(value: object) -> str:
    """As one would write it in the pipeline file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
