"""``edgert doctor``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import marked
from edgert.errors import EXIT_ERROR

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.diagnosis import Finding

_MARKS = {"yes": "[green]✓[/]", "optional": "[yellow]–[/]", "no": "[red]✗[/]"}


def doctor(json: option.Json = None, debug: option.Debug = False) -> None:
    """Check what is on this machine, what is missing, and how to get it.

    Looks at Python, board, CPU, memory, GPU, TensorRT, DLA, codecs, GStreamer and cameras. Needs no network and
    changes nothing. Exit code 1 only when something that edgert cannot run without is broken.

    Example: edgert doctor --json - | jq '.findings[] | select(.state != "yes")'
    """
    from dataclasses import asdict

    from rich.console import Console

    from edgert.diagnosis import doctor as find
    from edgert.diagnosis import facts

    findings = find()
    broken = [finding.name for finding in findings if finding.state == "no"]
    console = Console(stderr=is_stdout(json), highlight=False)
    console.print(_table(findings))
    console.print(_verdict(broken))
    if json is not None:
        found = [asdict(finding) for finding in findings]
        write_json({"ok": not broken, "machine": facts(), "findings": found}, json)
    if broken:
        raise typer.Exit(EXIT_ERROR)


def _table(findings: Iterable[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for column in ("mark", "name", "detail"):
        table.add_column(column, no_wrap=column != "detail", overflow="fold")
    for finding in findings:
        fix = Text(f"\n→ {finding.fix}" if finding.fix else "", style="cyan")
        table.add_row(_MARKS[finding.state], marked(finding.name, "bold"), Text(finding.detail) + fix)
    return table


def _verdict(broken: list[str]) -> str:
    if broken:
        return f"\n[red]edgert cannot run here:[/] {', '.join(broken)}"
    return "\n[green]edgert can run here.[/] – is not here and not required; → shows how to get it."
