"""``edgert bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, terminal
from edgert.errors import EXIT_ERROR, ConfigError
from edgert.installation import pipeline_path

if TYPE_CHECKING:
    from edgert.benchmark.measure import Figure

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL.onnx|PIPELINE|BUNDLE|PROFILE.json",
        help="Model to measure alone, pipeline to measure with edgert around it, or a shared profile to check.",
    ),
]
Quick = Annotated[bool, option.flag("--quick", "Measure fewer rounds, which is less exact.")]
Units = Annotated[
    bool, option.flag("--units", "Time every unit of a model on every core, and write a profile for edgert plan.")
]
Peer = Annotated[
    str | None,
    option.named("--peer", "NAME", "Race the engine with onnxruntime, openvino or torch used by themselves."),
]
Torch = Annotated[
    str | None,
    option.named("--torch", "MODULE:FUNCTION", "Race with PyTorch, by a function that returns the nn.Module."),
]
Share = Annotated[
    Path | None,
    option.named(
        "--share", "FILE", "Write what a BUNDLE measured when it was finished on a board, as an anonymous profile."
    ),
]
RunFile = Annotated[
    Path | None, option.named("--run", "FILE", "For --share: stages' times from a summary of edgert run --json.")
]


def bench(
    target: Target = "hello",
    quick: Quick = False,
    units: Units = False,
    output: Annotated[Path, option.output("The profile of --units.")] = Path("profile.json"),
    peer: Peer = None,
    torch: Torch = None,
    share: Share = None,
    run: RunFile = None,
    json: option.Json = None,
) -> None:
    """Measure a model alone, or what edgert adds to it.

    Figures are medians, and compared programs run in turn. Exit code 1 when a figure misses its bar: pixels copied,
    objects left behind, the difference to OpenCV. These are the same on every machine. Times, memory and sizes are
    reported only.

    A profile has the time of each unit of a model on each core alone, and that of the whole model while all cores are
    busy. It also has the cost of a cut. It holds for this machine and this file.

    A shared profile has the times that a Jetson measured for a bundle's engines. It names neither the machine nor its
    user nor the model. edgert plan --profile uses it for that board and other boards of its chip.

    Examples:
        edgert bench                       # edgert itself, with the demo
        edgert bench model.onnx            # the engine alone
        edgert bench pipeline.yaml --json bench.json
        edgert bench model.onnx --torch mine:model
        edgert bench --units model.onnx -o profile.json
        edgert bench dock.edgert --peer onnxruntime
        edgert bench dock.edgert --share orin-nx.json      # on the board, after edgert build dock.edgert there
        edgert bench orin-nx.json          # checks it
    """
    from edgert.benchmark.measure import machine
    from edgert.benchmark.suite import bench as measure
    from edgert.meters.over_current import OverCurrent, listed

    console = terminal.console(stderr=True)
    if share is None:
        option.refuse({"--run": run}, "it is for --share")
    if share is not None or target.endswith(".json"):
        option.refuse({"--units": units, "--peer": peer is not None, "--torch": torch is not None}, "one at a time")
        _show_shared_profile(console, Path(target), share, run)
        return
    over_current = OverCurrent()
    with console.status("measuring ..."):
        if peer is not None or torch is not None:
            figures = _race_peer(console, pipeline_path(target), peer or "torch", torch, quick)
        elif units:
            figures = _write_profile(console, Path(target), quick, output)
        else:
            figures = [_print_figure(console, figure) for figure in measure(pipeline_path(target), quick)]
    events = over_current.since_start()
    if named := listed(events):
        console.print(
            f"! meanwhile the board lowered its clocks as it drew too much: {named} events. Its times are not those of "
            "full clocks: use a smaller power mode, or a supply that gives more.",
            soft_wrap=True,
        )
    about = {**machine(), **({"over_current": events} if events else {})}
    terminal.write_json({"machine": about, "figures": [figure.to_json() for figure in figures]}, json)
    if not all(figure.holds for figure in figures):
        console.print("✗ is a bar that was missed: exit code 1. Where other programs ran meanwhile, measure again.")
        raise typer.Exit(EXIT_ERROR)


def _print_figure(console: terminal.Console, figure: Figure) -> Figure:
    bar = "" if figure.bar is None else f"   bar {'≤' if figure.better == 'lower' else '≥'} {figure.bar:g}"
    mark = " " if figure.bar is None else "[green]✓[/]" if figure.holds else "[red]✗[/]"
    console.print(f"{mark} {figure.name:<52}{figure.value:>10.3f} {figure.unit}{bar}   n={figure.n}", soft_wrap=True)
    return figure


def _write_profile(console: terminal.Console, target: Path, quick: bool, output: Path) -> list[Figure]:
    from edgert.benchmark.core_profile import figures_of, profile as measure
    from edgert.graph import load

    if target.suffix != ".onnx":
        why, fix = "a profile has the times of one ONNX model", "edgert bench --units MODEL.onnx"
        raise ConfigError(f"cannot profile {target}", why=why, fix=fix)
    found = measure(load(target), 6 if quick else 12)
    terminal.write_json(found.to_json(), output)
    figures = [_print_figure(console, figure) for figure in figures_of(found)]
    console.print("[green]→[/]", str(output), soft_wrap=True)
    return figures


def _show_shared_profile(console: terminal.Console, target: Path, output: Path | None, run: Path | None) -> None:
    """Print a shared profile: one that is made of a bundle and written to ``output``, or one that is checked."""
    from edgert.benchmark import share
    from edgert.bundle.shared_profile import read_shared_profile

    found = share.share(target, run) if output is not None else read_shared_profile(target)
    for line in share.lines(found):
        console.print(line, markup=False, soft_wrap=True)
    if output is not None:
        terminal.write_json(found.to_json(), output)
        console.print("[green]→[/]", str(output), soft_wrap=True)
    else:
        console.print("[green]✓[/] its figures are possible")


def _race_peer(console: terminal.Console, target: Path, peer: str, torch: str | None, quick: bool) -> list[Figure]:
    from edgert.benchmark.peers import compare_with_peer as race

    figures = []
    for figure in race(target, peer, torch, 15 if quick else 41):
        figures.append(_print_figure(console, figure))
        detail = figure.detail
        apart = "not compared" if detail["relative_error"] is None else f"{detail['relative_error']:.1e} apart"
        console.print(
            f"    {detail['edgert']}: {detail['edgert_ms']:.2f} ms a frame; peer: {detail['peer_ms']:.2f} ms on "
            f"{detail['threads']} threads; outputs {apart}",
            soft_wrap=True,
        )
    return figures
