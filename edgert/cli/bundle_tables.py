"""Tables of a bundle's members, its compiled engines with their slowest layers, and a search for settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from edgert.cli.terminal import NONE, UNKNOWN, Column, Row, facts, styled, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.bundle.manifest import ModelEntry
    from edgert.compiler.finish import EngineReport
    from edgert.inspect_model import BundleInspection
    from edgert.tuner.trials import Tuned


_TACTIC_COLUMNS = (
    Column("tactic", wraps=True),
    Column("ms a frame", is_number=True),
    Column("× default", is_number=True),
    Column("n", is_number=True, rank=2),
    Column("memory", is_number=True, rank=1),
    Column("", wraps=True),
)


_SLOWEST_LAYERS = 5
_ENGINE_COLUMNS = (
    Column("engine"),
    Column("TensorRT", rank=2),
    Column("size", is_number=True, rank=1),
    Column("time", is_number=True),
    Column("error", is_number=True),
    Column("nodes planned → there", wraps=True),
    Column("layers", is_number=True, rank=3),
    Column("reformats", is_number=True, rank=3),
    Column("DLA segments", is_number=True, rank=3),
    Column("memory", is_number=True, rank=1),
)
_LAYER_COLUMNS = (
    Column("layer", wraps=True),
    Column("on"),
    Column("time", is_number=True),
    Column("share", is_number=True),
    Column("nodes", wraps=True, rank=1),
)
_DIGEST_DIGITS = 16  # hexadecimal digits
_MEMBER_COLUMNS = (Column("member", wraps=True), Column("size", is_number=True), Column("SHA-256", rank=1))


def show_tuned(console: Console, name: str, tuned: Tuned) -> None:
    """Print a model's measured tactics, fastest first, the reasons why others were excluded, and the gain."""
    rows, excluded = [], []
    for trial in tuned.tried:
        if trial.frame is None:
            excluded.append((trial.excluded, str(trial.tactic)))
            continue
        is_chosen = trial.tactic == tuned.chosen
        words = ["default"] * (trial.tactic == tuned.default) + ["chosen"] * is_chosen
        memory = "" if trial.memory_bytes is None else format_bytes(trial.memory_bytes)
        times = (f"{trial.frame.median_ms:.2f}", f"{trial.gain:.2f}", str(trial.frame.runs))
        cells = (str(trial.tactic), *times, memory, ", ".join(words) or trial.excluded)
        rows.append(Row(cells, "bold" if is_chosen else ""))
    title = f"{name}: {len(tuned.tried)} tactics, for {'cameras' if tuned.live else 'files'}"
    console.print(table(_TACTIC_COLUMNS, rows, width=console.width, title=title))
    lines = []
    for why, group in groupby(sorted(excluded), key=lambda pair: pair[0]):
        tactics = [tactic for _, tactic in group]
        lines.append(f"{tactics[0]}{f' and {len(tactics) - 1} more' if len(tactics) > 1 else ''}: {why}")
    for line in (*lines, *(f"left out: {what}: {why}" for what, why in tuned.left_out.items())):
        console.print(line, style="dim", markup=False, soft_wrap=True)
    gain = styled(f"{name}: gain {tuned.gain:.2f} ×; {tuned.summary}", "")
    console.print("[green]→[/]", gain, soft_wrap=True)


def show_engines(console: Console, engines: Sequence[EngineReport]) -> None:
    """Print the engines that each machine compiled, and the slowest layers of timed engines."""
    for target in dict.fromkeys(one.target for one in engines):
        here = [one for one in engines if one.target == target]
        machine = [here[0].facts.get(name, "") for name in ("module", "power mode", "GPU")]
        rows = [Row(_engine_cells(one, len(here) > 1)) for one in here]
        title = f"compiled on {', '.join(filter(None, machine))}"
        console.print(table(_ENGINE_COLUMNS, rows, width=console.width, title=title))
        for one in here:
            name = f"{one.model}-{one.number}"
            for attempt in one.attempts:
                console.print(f"{name} was not compiled as requested: {attempt}", markup=False)
            if one.checks.input:
                console.print(f"{name} takes {one.checks.input}", markup=False)
        for one in here:
            if one.checks.layers:
                _show_layers(console, one)


def _engine_cells(one: EngineReport, has_others: bool) -> tuple[str, ...]:
    checks, memory = one.checks, UNKNOWN
    context, tensors = checks.memory.context_bytes, checks.memory.tensor_bytes
    if context is not None and tensors is not None:  # weights are in the plan
        memory = format_bytes(one.size_bytes + context + tensors)
    found, error = checks.placement, checks.outputs.relative_error
    return (
        f"{one.model}-{one.number}" + (f", weight {one.weight}" if has_others else ""),
        one.library.removeprefix("TensorRT "),
        format_bytes(one.size_bytes),
        f"{checks.profile.median_ms:.2f} ms" if checks.profile is not None else "not run",
        f"{error:.2g}" if error is not None else UNKNOWN,
        nodes_in_words(one),
        *(str(count) if found.source else UNKNOWN for count in (found.layers, found.reformats, found.loadables)),
        memory,
    )


def nodes_in_words(one: EngineReport) -> str:
    """Return ``dla0 12 → 10, gpu 40 → 40, 2 folded``: nodes of each accelerator, planned → actual.

    Where TensorRT did not report where nodes run, only planned counts are shown.
    """
    found = one.checks.placement
    parts = [
        f"{name} {count.planned}" + (f" → {count.actual}" if found.source else "")
        for name, count in found.nodes.items()
        if name
    ]
    if found.source and "" in found.nodes:
        parts.append(f"{found.nodes[''].actual} folded")
    return ", ".join(parts) or UNKNOWN


def _show_layers(console: Console, one: EngineReport) -> None:
    layers = sorted(one.checks.layers, key=lambda layer: -layer.median_ms)
    total_ms = sum(layer.median_ms for layer in layers) or 1.0
    runs = one.checks.profile.runs if one.checks.profile is not None else 0
    title = f"slowest of {len(layers)} layers of {one.model}-{one.number}, medians of {runs} runs"
    rows = []
    for layer in layers[:_SLOWEST_LAYERS]:
        times = (f"{layer.median_ms:.3f} ms", f"{100 * layer.median_ms / total_ms:.1f} %")
        rows.append(Row((layer.name, layer.accelerator or UNKNOWN, *times, ", ".join(layer.nodes))))
    console.print(table(_LAYER_COLUMNS, rows, width=console.width, title=title))


def show_bundle(console: Console, found: BundleInspection) -> None:
    """Print a checked bundle: its models, members and compiled engines."""
    console.print(facts(_bundle_facts(found)))
    rows = [
        Row((path, format_bytes(member.size_bytes), member.sha256[:_DIGEST_DIGITS]))
        for path, member in found.manifest.members.items()
    ]
    console.print(table(_MEMBER_COLUMNS, rows, width=console.width))
    show_engines(console, found.engines)


def _bundle_facts(found: BundleInspection) -> Iterator[tuple[str, str]]:
    manifest = found.manifest
    size_bytes = sum(member.size_bytes for member in manifest.members.values())
    yield "bundle", f"{found.path}, {format_bytes(size_bytes)} in {len(manifest.members)} members, none damaged"
    yield "signed by", NONE if found.signer is None else str(found.signer)
    yield "made by", f"edgert {manifest.edgert}"
    yield "pipeline", manifest.name
    where = f" in {manifest.mode}, TensorRT {manifest.tensorrt}" if manifest.tensorrt else ""
    yield "board", f"{manifest.board}{where}"
    yield "engines", " → ".join(manifest.engines)
    yield "sources", ", ".join(f"{name} ({kind})" for name, kind in manifest.sources.items()) or "none"
    yield "sinks", ", ".join(f"{name} ({kind})" for name, kind in manifest.sinks.items()) or "none"
    for name, model in manifest.models.items():
        takes, returns = (", ".join(map(str, ports)) for ports in (model.inputs, model.outputs))
        yield f"model {name}", f"{model.source}, {model.precision}: {takes} → {returns}"
        yield from (("", line) for line in _accuracy_lines(found.accuracy[name], model))
        if tuned := found.tuned.get(name):
            cpu = tuned.machine.get("cpu", UNKNOWN)
            yield "", f"tuned for {'cameras' if tuned.live else 'files'} on {cpu}: {tuned.summary}"


def _accuracy_lines(found: Mapping[str, Any], model: ModelEntry) -> Iterator[str]:
    """Yield a line for each form of a model: how far its outputs are from those of the original."""
    for name in model.forms:
        if (row := found["forms"].get(name)) is None:
            continue  # the original itself
        error = row["relative_error"]
        distance = "not finite" if error is None else f"{error:.2g}"
        more = "".join(f"; {line}" for line in row.get("summary", ())[: 2 if "accuracy" in row else 1])
        yield f"for {name}: relative error {distance} (at most {row['tolerance']:g}){more}"
