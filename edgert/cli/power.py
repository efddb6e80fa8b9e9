"""What ``edgert run`` says of power settings before it begins: those that a crash left, and those it would use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from edgert.budget.control import PowerControl
from edgert.errors import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

    from edgert.assemble.power_step import PowerSteps
    from edgert.config import PipelineFile


def tell_left(root: Path) -> None:
    """Says what a run that crashed left changed, as it may not be restored without consent; nothing otherwise."""
    try:
        left = "; ".join(map(str, PowerControl(root=root).left()))
    except DeviceError as error:
        left = f"{error.what}: {error.why}"
    if left:
        fix = "the next edgert run with --allow-power-control, as root, restores them"
        typer.secho(f"power settings that a crashed run left: {left}; {fix}", fg="yellow", err=True)


def tell_steps(file: PipelineFile, root: Path, *, is_placed: bool, to_stderr: bool = False) -> list[dict[str, Any]]:
    """The clocks and power modes that a governor would choose among, with the changes each takes; makes none.

    Args:
        is_placed: see :func:`edgert.plan.power_step.power_steps`.

    Returns:
        The same as plain data.

    Raises:
        BudgetError: there is nothing to govern by clocks.
    """
    from edgert.plan.power_step import power_steps

    with PowerControl(dry_run=True, root=root) as control:
        steps = power_steps(file, control, is_placed=is_placed, root=root)
        told = [_told(steps, number, control) for number in range(len(steps.steps))]
    for one in told:
        changes = "; ".join(one["changes"]) or "no change"
        typer.echo(f"power: {one['name']}: {one['power_w']:.1f} W predicted, {changes}", err=to_stderr)
    return told


def _told(steps: PowerSteps, number: int, control: PowerControl) -> dict[str, Any]:
    step = steps.steps[number]
    steps.take(step)
    changes = [str(change) for change in control.changes]
    return {"name": step.name or "as it is now", "power_w": step.power_w, "changes": changes}
