"""The board that a pipeline file is written for."""

from __future__ import annotations

from edgert.board import HOST
from edgert.board.record import Board, find_board
from edgert.config import PipelineFile
from edgert.errors import ConfigError

THIS_MACHINE = ("auto", HOST)
"""What ``board:`` says of the machine edgert runs on; ``host`` of its processor only."""


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
