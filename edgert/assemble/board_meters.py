"""The board of a pipeline file, and the meters of this machine, with modeled power where no sensor can be read."""

from pathlib import Path

from edgert.board import HOST
from edgert.board.detect import detect
from edgert.board.record import Board, find_board
from edgert.clock import Clock
from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.meters.all import Meters, Model
from edgert.meters.clocks import gpu_gauges
from edgert.meters.reading import Reading, modeled
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.cost.formulas import power

# The board that a pipeline file is written for.

THIS_MACHINE = ("auto", HOST)
"""Values of ``board:`` for the machine edgert runs on; ``host`` is its processor only."""


def board_of(file: PipelineFile) -> Board | None:
    """The board that ``board:`` names, or describes in a file of the user's own; None for this machine.

    Raises:
        ConfigError: there is no such board, with the line of the pipeline file; or its own file has mistakes.
    """
    name = file.config.board
    if name in THIS_MACHINE:
        return None
    try:
        return find_board(name, file.document.path.parent)
    except ConfigError as error:
        if not error.where:
            error.where, error.fix = file.where("board"), f"auto or host for this machine; {error.fix}"
        raise


# Modeled watts of a board without a readable sensor: idle, and the GPU at its reported load.

_LOAD = "gpu.load"


def meters_here(clock: Clock, root: Path = Path("/")) -> Meters:
    """The meters of this machine, with modeled power where it is a board that edgert knows and no sensor can be
    read."""
    return Meters(root, clock, power_model(root))


def power_model(root: Path) -> Model | None:
    """Gives modeled watts of the board that ``root`` is the file system of; None for any other machine.

    Its CPU cores are not in it, so it is too low rather than too high: edgert.placement.cost.formulas has the
    formula and where its numbers come from.
    """
    machine = detect(root)
    board, load = machine.board, gpu_gauges(root).get(_LOAD)
    if board is None:
        return None
    mode = board.mode(machine.mode) if board.has_mode(machine.mode) else board.usual_mode
    watts = power(board, mode, coefficients(board.soc).power)

    def read() -> Reading:
        percent = None if load is None else load().value
        busy = 1.0 if percent is None else percent / 100
        return modeled(watts.static_w + watts.gpu_w * busy, "W", f"cost model of {board.name}", "without CPU cores")

    return read
