"""``edgert build dock.edgert``: the last step of a build, on the machine that runs it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.cli.option import refuse
from edgert.cli.output import is_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.build.finish import Finished, Waiting


def finish_here(
    bundle: Path, output: Path | None, folder: bool, json: Path | None, strict: bool, foreign: Mapping[str, object]
) -> None:
    """Compiles what a bundle misses, and shows how it goes: in lines, or as events in JSON.

    Args:
        foreign: option → value, of those that say what a bundle is built for, which this one knows already.
    """
    from edgert.build.finish import finish
    from edgert.cli.build_progress import listener
    from edgert.cli.signals import stop_on_signal

    refuse(foreign, f"{bundle} is a bundle, which says that itself")
    stop = threading.Event()
    with listener(json) as (tell, write), stop_on_signal(stop.set):
        done = finish(bundle, output, strict=strict, folder=folder, tell=tell, stop=stop)
        write(told(done))
    if not is_stdout(json):
        _show(done)


def told(done: Finished) -> dict[str, object]:
    """The last line of ``--json``."""
    return {
        "bundle": str(done.path) if done.path is not None else None,
        "written": done.written,
        "size_bytes": done.size_bytes,
        "seconds": round(done.seconds, 3),
        "board": done.manifest.board,
        "target": done.target,
        "engines": dict(done.engines),
        "waiting": told_waiting(done.waiting),
        "skipped": [{"engine": one.engine, "model": one.model, "why": one.why} for one in done.skipped],
    }


def told_waiting(waiting: Mapping[str, Waiting]) -> dict[str, dict[str, str]]:
    """Model → the engine that waits for what it needs, and why."""
    return {model: asdict(one) for model, one in waiting.items()}


def show_engines(console: Console, engines: Mapping[str, str], waiting: Mapping[str, Waiting], place: str) -> None:
    """Who runs each model at a place, and what was compiled for it that cannot run there yet."""
    for model, engine in engines.items():
        console.print(f"{model} runs with {engine} {place}", markup=False)
    for model, one in waiting.items():
        so_far = "" if model in engines else "; nothing else of engines: runs it"
        console.print(
            f"{model} is compiled for {one.engine}, which cannot run {place} yet{so_far}: {one.why}", markup=False
        )


def _show(done: Finished) -> None:
    from rich.console import Console

    from edgert.units import format_bytes

    console = Console(highlight=False)
    show_engines(console, done.engines, done.waiting, "here")
    if done.path is None:
        console.print(f"cached on this machine: edgert run finds it ({done.seconds:.1f} s)")
        return
    word = "written" if done.written else "nothing has changed; left as it is"
    console.print(f"[green]→[/] {done.path}: {format_bytes(done.size_bytes)}; {word} ({done.seconds:.1f} s)")
