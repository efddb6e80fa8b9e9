"""``edgert boards``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgert.cli.option import DebugOption, JsonOption
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import console


def boards(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[BOARD]", help="Name of a board, or a board file of your own. All when left out."),
    ] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Show every number with its source and its confidence.")
    ] = False,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print the board's file, as a start for a board file of your own.")
    ] = False,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """List the boards that edgert knows, and what they can do in each power mode.

    Examples:

        edgert boards

        edgert boards orin-nx-16gb --sources

        edgert boards orin-nx-16gb --yaml > my-board.yaml    # change its name, too

        edgert boards ./my-board.yaml
    """
    from edgert.board.record import board_file, find_board
    from edgert.board.record import boards as all_boards
    from edgert.board.sheet import data_sheet
    from edgert.cli.board_table import show_board, show_list, show_sources

    if name is None and (sources or yaml):
        raise typer.BadParameter("name a board, too", param_hint="--sources" if sources else "--yaml")
    found = all_boards() if name is None else (find_board(name),)
    if name is not None and yaml:
        typer.echo(board_file(name).read_text(encoding="utf-8"), nl=False)
        return
    screen = console(stderr=is_stdout(json))
    if name is None:
        show_list(screen, found)
    else:
        show_board(screen, found[0])
    if sources:
        show_sources(screen, found[0])
    if json is not None:
        write_json([data_sheet(board) for board in found] if name is None else data_sheet(found[0]), json)
