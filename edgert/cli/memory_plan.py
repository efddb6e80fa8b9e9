"""``edgert run --dry-run``: the memory that a pipeline needs, and what power control may change. Nothing runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from edgert.assemble import memory
from edgert.budget.control import PowerControl
from edgert.budget.footprint import Footprint
from edgert.bundle.bundle import is_bundle
from edgert.cli import plan_command, progress, run_here, terminal
from edgert.config import PipelineFile
from edgert.planner.simulation import power_steps
from edgert.units import format_bytes


def plan_memory(
    path: Path,
    overrides: Sequence[str],
    json: Path | None,
    *,
    strict: bool,
    quiet: bool,
    power: bool,
    signers: Path | None,
) -> None:
    """Show the memory plan, and what power control would change. Raises Exit where memory does not suffice."""
    with ExitStack() as stack, progress.on_first_call(progress.build_progress, quiet) as on_progress:
        if is_bundle(path):
            file, bundle = run_here.open_pipeline(
                stack, path, overrides, on_progress, strict=strict, quiet=quiet, signers=signers
            )
        else:
            file, bundle = run_here.load_with_engines(path, overrides, quiet=quiet), None
        plan = memory.plan_memory(file, has_engines=bundle is not None and bundle.engines is not None)
        show_memory(plan, to_stderr=terminal.is_stdout(json))
        found: dict[str, Any] = {"memory": plan.to_json()}
        if power:
            placed, to_stderr = bundle is not None, terminal.is_stdout(json)
            found["power"] = show_power_steps(file, Path("/"), is_placed=placed, to_stderr=to_stderr)
        terminal.write_json(found, json)
        if not plan.fits:
            raise typer.Exit(1)


def show_memory(plan: Footprint, *, to_stderr: bool = False) -> None:
    """Print the memory of each part, the changes that reduced it, and whether it fits."""
    screen = terminal.console(stderr=to_stderr)
    screen.print(plan_command.parts_table(plan.parts, screen.width))
    for step in plan.steps:
        screen.print(f"made smaller: {step}", markup=False)
    word = "fits" if plan.fits else "does not fit"
    if plan.budget_bytes is None or (plan.keeps_budget and not plan.fits):
        machine = f" of the machine's {format_bytes(plan.machine_bytes)}, swap and all" if plan.machine_bytes else ""
        verdict = f"{word}: at least {format_bytes(plan.least_bytes)}{machine}"
    else:
        most = f"{format_bytes(plan.most_bytes)} with {plan.error:.0%} to spare for the prediction's error"
        verdict = f"{word}: {most}, of the budget's {format_bytes(plan.budget_bytes)}"
    screen.print(verdict, style="green" if plan.fits else "red", markup=False)


def show_power_steps(
    file: PipelineFile, root: Path, *, is_placed: bool, to_stderr: bool = False
) -> list[dict[str, Any]]:
    """Print, and return as plain data, the clocks and power modes that a governor would choose among."""
    found: list[dict[str, Any]] = []
    with PowerControl(dry_run=True, root=root) as control:
        steps = power_steps(file, control, is_placed=is_placed, root=root)
        for step in steps.steps:
            steps.take(step)
            changes = [str(change) for change in control.changes]
            name = step.name or "as it is now"
            found.append({"name": name, "power_w": step.power_w, "changes": changes})
            text = f"power: {name}: {step.power_w:.1f} W predicted, {'; '.join(changes) or 'no change'}"
            typer.echo(text, err=to_stderr)
    return found
