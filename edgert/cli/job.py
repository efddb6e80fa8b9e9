"""``edgert job``: not for people; the board's side of ``edgert build --remote``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def job(
    words: Annotated[list[str], typer.Argument(metavar="ACTION WORDS...", help="See edgert.remote.board_actions.")],
) -> None:
    """Do the board's part of a remote build; a workstation calls this over ssh."""
    from edgert.remote.board_actions import perform

    perform(words, sys.stdin.buffer, sys.stdout.buffer)
