"""``edgert build PIPELINE --remote user@jetson``: engines compiled on their board, from here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.cli.build_finish import show_engines, told_waiting
from edgert.cli.option import bundle_of, refuse
from edgert.cli.output import is_stdout

if TYPE_CHECKING:
    from edgert.config import PipelineFile
    from edgert.remote.make import BuiltThere


def build_remotely(
    source: Path,
    output: Path | None,
    address: str,
    program: str | None,
    *,
    target: Mapping[str, str | None],
    overrides: Sequence[str],
    json: Path | None,
    strict: bool,
    foreign: Mapping[str, object],
) -> None:
    """Builds a pipeline or bundle, and shows how it goes here and there: in lines, or as events in JSON.

    Args:
        target: board, mode and TensorRT as they were asked for.
        strict: an engine that the board would skip is an error.
        foreign: option → value, of those that a remote build has no use for.
    """
    from edgert.artifact.bundle import is_bundle
    from edgert.cli.build_progress import listener
    from edgert.cli.signals import stop_on_signal
    from edgert.config import load_pipeline
    from edgert.remote.make import build_there

    refuse(foreign, "it is for builds on this machine")
    made: PipelineFile | Path = source
    if is_bundle(source):
        given = {"--board": target["board"], "--mode": target["mode"], "--trt": target["tensorrt"], "--set": overrides}
        refuse(given, f"{source} is a bundle, which says that itself")
        output = output or source
    else:
        made = load_pipeline(source, overrides)
        output = output or bundle_of(made)
    stop = threading.Event()
    with listener(json) as (tell, write), stop_on_signal(stop.set):
        built = build_there(made, output, address, program=program, **target, strict=strict, tell=tell, stop=stop)
        write(_told(built))
    if not is_stdout(json):
        _show(built, address)


def _told(built: BuiltThere) -> dict[str, object]:
    return {
        "bundle": str(built.path),
        "written": built.written,
        "size_bytes": built.size_bytes,
        "seconds": round(built.seconds, 3),
        "board": built.there.name,
        "engines": dict(built.engines),
        "waiting": told_waiting(built.waiting),
    }


def _show(built: BuiltThere, address: str) -> None:
    from rich.console import Console

    from edgert.units import format_bytes

    console = Console(highlight=False)
    show_engines(console, built.engines, built.waiting, f"on {address}")
    word = "written" if built.written else "nothing has changed; left as it is"
    console.print(f"[green]→[/] {built.path}: {format_bytes(built.size_bytes)}; {word} ({built.seconds:.1f} s)")
