"""What a governor may do to the board's clocks, predicted by a plan: lower caps of the GPU, lower power modes."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgert.assemble.run_settings import PowerStep, PowerSteps
from edgert.board import detect
from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.budget.control import PowerControl
from edgert.config import PipelineFile
from edgert.errors import BudgetError, ConfigError, PlacementError
from edgert.placement.cost.coefficients import Coefficients, coefficients
from edgert.placement.cost.formulas import Power, power
from edgert.placement.plan_record import BoardPlan, Row
from edgert.planner.planning import plan
from edgert.simulator.design import levels_of

_LOG = logging.getLogger(__name__)
_CAPS = 6
"""Clock caps that are offered: Jetson's tables have a dozen and more, of which neighbors hardly differ in power."""
_SLOWEST = 0.4  # of the fastest clock


def power_steps(
    file: PipelineFile, control: PowerControl, *, is_placed: bool = False, root: Path = Path("/")
) -> PowerSteps:
    """What this board may be clocked down to, by a plan of the pipeline on it. Seconds.

    Args:
        control: entered; knows what can be changed without a reboot, and changes it.
        is_placed: the models run as a plan placed them, in a bundle; otherwise on the GPU.
        root: where the files of a running Linux are.

    Raises:
        BudgetError: there is nothing to govern by clocks: no power budget to be kept, no board that edgert knows.
        DeviceError: settings cannot be changed here.
    """
    budgets = file.config.budgets
    if budgets.power is None or budgets.when_exceeded != "degrade":
        raise BudgetError(
            "nothing to control power for",
            why="--allow-power-control keeps a power budget by lower clocks, and the pipeline asks for none",
            where=file.where("budgets"),
            fix="budgets: {power: 15W, when_exceeded: degrade}, or leave --allow-power-control out",
        )
    machine = detect(root)
    if machine.board is None or not machine.board.has_mode(machine.mode):
        raise BudgetError(
            "cannot control the power of this machine",
            why=machine.mode_trouble
            or f"it is {machine.name}, in power mode {machine.mode or 'unknown'}; no plan has it",
            where="--allow-power-control",
            fix="it is for Jetsons that edgert boards lists; leave it out here",
        )
    control.check()
    found = plan(file, board=machine.board.name).boards[0]
    placement = found.rows[found.chosen or 0].name if is_placed else "gpu"
    costs = coefficients(machine.board.soc)
    here = machine.board.mode(machine.mode)
    steps = steps_of(found, placement, machine.board, here, control, costs)
    return PowerSteps(steps, control)


def levels_here(file: PipelineFile, root: Path = Path("/")) -> tuple[PowerStep, ...]:
    """What a plan predicts of this board at each level of degraded models. Seconds.

    Empty where edgert does not know the board, a plan cannot have the models where the file puts them, or there is no
    fallback model.
    """
    budgets, machine = file.config.budgets, detect(root)
    is_asked = budgets.power is not None and budgets.when_exceeded == "degrade" and len(levels_of(file)) > 1
    if not is_asked or machine.board is None or not machine.board.has_mode(machine.mode):
        return ()
    mode = machine.board.mode(machine.mode)
    try:
        found = plan(file, board=machine.board.name, mode=mode.name).boards[0]
    except (ConfigError, PlacementError) as error:
        _LOG.info("no prediction of the models to choose among: %s", error.what)
        return ()
    row = found.rows[found.chosen or 0]
    watts = power(machine.board, mode, coefficients(machine.board.soc).power)
    return tuple(step_of(one, watts) for one in (row, *row.fallbacks))


def steps_of(
    found: BoardPlan, placement: str, board: Board, here: Mode, control: PowerControl, costs: Coefficients
) -> tuple[PowerStep, ...]:
    """The board's present setting, then caps of the GPU's clock in that mode, then lower modes.

    Raises:
        BudgetError: the plan has no row for the mode the board is in.
    """
    reachable = control.modes()

    def row_of(mode: str) -> Row | None:
        """Of that placement; of another where a file's own placement left no choice."""
        of_mode = [one for one in found.rows if one.mode == mode and one.power_w is not None]
        return next((one for one in of_mode if one.name == placement), of_mode[0] if of_mode else None)

    now = row_of(here.name)
    if now is None:
        raise BudgetError(
            f"no plan for power mode {here.name}",
            why="; ".join(found.skipped) or f"{board.title} was planned without it",
            where="--allow-power-control",
            fix="sudo nvpmodel -m, to a mode that edgert plan shows",
        )
    steps = [step_of(now, power(board, here, costs.power))]
    steps += _capped(steps[0], board, here, control.gpu_steps_hz(), costs)
    for mode in board.modes:
        row = row_of(mode.name)
        # A mode is lower that is named for fewer watts; what has no limit is above all.
        is_lower = mode.watts is not None and (here.watts is None or mode.watts < here.watts)
        if row is not None and mode.name in reachable and is_lower:
            step = step_of(row, power(board, mode, costs.power), f"power mode {mode.name}")
            steps.append(replace(step, mode=mode.name))
    return tuple(steps)


def step_of(row: Row, watts: Power, name: str = "") -> PowerStep:
    """A board's row, whose power is known, as a governor reckons with it."""
    assert row.power_w is not None
    return PowerStep(name, row.power_w, min(watts.static_w, row.power_w), row.headroom, row.p99_ms)


def _capped(
    first: PowerStep, board: Board, mode: Mode, steps_hz: Sequence[int], costs: Coefficients
) -> Iterator[PowerStep]:
    """With a slower GPU: work takes longer in proportion and less energy, as its voltage falls with its clock.

    Taken as if all work were the GPU's, which is so slow at worst; the governor measures what is drawn.
    """
    if mode.gpu_mhz is None:
        return
    full = power(board, mode, costs.power).gpu_w
    slower_hz = [hz for hz in steps_hz if _SLOWEST * mode.gpu_mhz * 1e6 <= hz < mode.gpu_mhz * 1e6]
    stride = -(-len(slower_hz) // _CAPS) or 1  # a few of them, evenly, the fastest first
    for hz in sorted(slower_hz, reverse=True)[::stride]:
        slower = hz / (mode.gpu_mhz * 1e6)
        headroom = first.headroom * slower
        busy_w = power(board, mode.model_copy(update={"gpu_mhz": hz / 1e6}), costs.power).gpu_w
        work = (first.power_w - first.idle_w) * (busy_w / full) / slower  # for as much work in longer time
        work *= min(1.0, headroom) / first.sustained()
        name = f"GPU at {hz / 1e6:.0f} MHz"
        yield PowerStep(name, first.idle_w + work, first.idle_w, headroom, first.latency_ms / slower, gpu_hz=hz)
