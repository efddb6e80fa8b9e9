"""``edgert boards`` and ``edgert models``: known boards with their power modes, and known families of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, terminal
from edgert.cli.terminal import NONE, UNKNOWN, Column, Row
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.board.record import Board, Precision
    from edgert.board.sections import Dla, Mode
    from edgert.wiring.known import KnownFamily


_NUMBER_COLUMNS = (
    Column("number"),
    Column("value", wraps=True),
    Column("confidence", rank=1),
    Column("source", rank=1),
    Column("note", wraps=True, rank=2),
)
_BOARD_COLUMNS = (
    Column("board"),
    Column("SoC", rank=5),
    Column("memory"),
    Column("GB/s", rank=1),
    Column("GPU SMs @ MHz", rank=4),
    Column("INT8 TOPS"),
    Column("DLA INT8 TOPS"),
    Column("modes", rank=3),
    Column("JetPack", rank=2),
    Column("title", rank=6),
)
BOARD_HEADINGS = tuple(column.heading for column in _BOARD_COLUMNS)
LEGEND = (
    "TOPS are dense, clocks upper limits; ? is unknown, ~ estimated, – is not there; "
    "† edgert plans for it and does not run on it."
)


def boards(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[BOARD]", help="Name of a board, or a board file of your own. Default: all."),
    ] = None,
    sources: Annotated[bool, option.flag("--sources", "Show every number with its source and its confidence.")] = False,
    yaml: Annotated[
        bool, option.flag("--yaml", "Print the board's file, as a start for a board file of your own.")
    ] = False,
    json: option.Json = None,
) -> None:
    """List the boards that edgert knows, and what they can do in each power mode.

    Examples:
        edgert boards
        edgert boards orin-nx-16gb --sources --json board.json
        edgert boards orin-nx-16gb --yaml > my-board.yaml    # change its name, too
        edgert boards ./my-board.yaml
    """
    from edgert.board.record import board_file, boards as all_boards, data_sheet, find_board

    screen, found = terminal.console(json), None
    if name is None:
        option.refuse({"--sources": sources, "--yaml": yaml}, "name a board, too")
        rows = [Row(board_row(board)) for board in all_boards()]
        screen.print(terminal.table(_BOARD_COLUMNS, rows, width=screen.width))
        screen.print(f"[dim]{LEGEND} edgert boards NAME shows the power modes.[/]")
    else:
        found = find_board(name)
        if yaml:
            typer.echo(board_file(name).read_text(encoding="utf-8"), nl=False)
            return
        _show_board(screen, found)
        if sources:
            _show_sources(screen, found)
    terminal.write_json([data_sheet(one) for one in all_boards()] if found is None else data_sheet(found), json)


def _show_board(console: Console, board: Board) -> None:
    ranks = {"CPU cores @ MHz": 2, "GB/s": 1}
    columns = [Column(heading, rank=ranks.get(heading, 0)) for heading in mode_headings(board)]
    rows = [Row(mode_row(board, mode)) for mode in board.modes]
    console.print(terminal.facts(board_facts(board)))
    console.print()
    console.print(terminal.table(columns, rows, width=console.width))
    for line in (LEGEND, *mode_notes(board)):
        console.print(line, style="dim", markup=False)


def _show_sources(console: Console, board: Board) -> None:
    """Print every number of a board with its confidence and source number, then the sources in full."""
    from edgert.board.record import numbers

    rows, cited = [], dict[str, int]()
    for number in numbers(board):
        origin = number.origin
        mark = cited.setdefault(origin.source, len(cited) + 1)
        rows.append(Row((number.key, _format_value(number.value), origin.confidence, str(mark), origin.note)))
    console.print()
    console.print(terminal.table(_NUMBER_COLUMNS, rows, width=console.width))
    console.print()
    for source, mark in cited.items():
        console.print(f"{mark:>3} {source}", markup=False, soft_wrap=True)


def board_row(board: Board) -> tuple[str, ...]:
    """Return the cells of a board under :data:`BOARD_HEADINGS`."""
    is_known = any(not mode.unknown for mode in board.modes)
    guessed = [key for key in ("gpu_mhz", "emc_mhz") if all(key in mode.estimated for mode in board.modes)]
    peak = board.peak_mode.model_copy(update={"estimated": tuple(guessed)})  # not published for any mode
    return (
        board.name,
        board.soc,
        _format_memory(board.memory.bytes),
        _bandwidth(board, peak),
        f"{board.gpu.sms} @ {_clock(peak, 'gpu_mhz')}",
        _gpu_tops(board, peak, "int8"),
        _dla_tops(board, peak),
        str(len(board.modes)) if is_known else UNKNOWN,
        ", ".join(map(str, board.jetpack.majors)) + (" †" if board.jetpack.no_edgert else ""),
        board.title,
    )


def mode_headings(board: Board) -> tuple[str, ...]:
    """Return the headings of the table of power modes."""
    dla = ("DLA MHz", "DLA INT8 TOPS") if board.dla.cores else ()
    return ("mode", "W", "CPU cores @ MHz", "GPU SMs @ MHz", "GPU INT8 / FP16 TOPS", *dla, "GB/s")


def mode_row(board: Board, mode: Mode) -> tuple[str, ...]:
    """Return the cells of a power mode under :func:`mode_headings`."""
    is_default = board.default_mode is not None and board.mode(board.default_mode.name) is mode
    clocks = _text_of_cores([_format_exact(mode.dla_clock_mhz(core)) for core in range(mode.dla_cores)])
    dla = (clocks, _dla_tops(board, mode)) if board.dla.cores else ()
    return (
        f"{mode.name} *" if is_default else mode.name,
        NONE if mode.watts is None else f"{mode.watts:g}",
        f"{_clock(mode, 'cpu_cores')} @ {_clock(mode, 'cpu_mhz')}",
        f"{_clock(mode, 'sms')} @ {_clock(mode, 'gpu_mhz')}",
        f"{_gpu_tops(board, mode, 'int8')} / {_gpu_tops(board, mode, 'fp16')}",
        *dla,
        _bandwidth(board, mode),
    )


def board_facts(board: Board) -> Iterable[tuple[str, str]]:
    """Yield name and text of the properties of a board that no power mode changes."""
    cpu, memory = board.cpu, board.memory
    yield "board", f"{board.title} ({board.name}), {board.soc}"
    for one in board.match.variants if board.match is not None else ():
        yield "taken for it", f"{one.name} ({one.word}): {one.note}"
    usable = f" ({_format_memory(memory.usable_bytes)} for programs)" if memory.usable_bytes else ""
    size = f"{_format_memory(memory.bytes)} {memory.type}{usable}"
    yield "memory", f"{size}, {memory.bus_bits} bit at {memory.emc_max_mhz:g} MHz"
    gpu = board.gpu
    cores = f"{_format_count(gpu.sms, 'SM')}, {gpu.cuda_cores} CUDA cores, {gpu.tensor_cores} tensor cores"
    yield "GPU", f"{gpu.architecture}, compute {gpu.compute}, {cores}, {_format_exact(gpu.max_mhz)} MHz"
    yield "CPU", f"{_format_count(cpu.cores, 'core')}, {cpu.model}, {_format_exact(cpu.max_mhz)} MHz"
    yield "DLA", _dla_text(board.dla)
    if idle := [f"{line.watts:g} W ({line.rail}, clocks {line.clocks})" for line in board.idle]:
        yield "idle", "; ".join(dict.fromkeys(idle))
    yield "JetPack", "; ".join(filter(None, (", ".join(map(str, board.jetpack.majors)), board.without_edgert)))
    if board.advertised is not None:
        sparse = "sparse" if board.gpu.sparse_speedup > 1 else "dense"
        both = ", GPU and DLA together" if board.dla.cores else ""
        yield "advertised", f"{board.advertised.tops:g} TOPS ({sparse} INT8{both})"


def mode_notes(board: Board) -> Iterable[str]:
    """Yield notes on the table of power modes."""
    if board.default_mode is not None:
        sure = "" if board.default_mode.confidence == "high" else f" ({board.default_mode.confidence} confidence)"
        yield f"* boots into this one{sure}."
    yield from (f"{mode.name} ({mode.confidence} confidence): {mode.notes}" for mode in board.modes if mode.notes)


def _dla_text(dla: Dla) -> str:
    if not dla.cores:
        return "none"
    text = f"{_format_count(dla.cores, 'core')} of generation {dla.generation}, {_format_exact(dla.max_mhz)} MHz"
    shared = " shared" if dla.sram_shared else " each" if dla.cores > 1 else ""
    return f"{text}, {_format_memory(dla.sram_bytes)} SRAM{shared}" if dla.sram_bytes else text


def _gpu_tops(board: Board, mode: Mode, precision: Precision) -> str:
    if getattr(board.gpu.ops_per_clock, precision) is None:
        return NONE
    return _figure(mode, _format_speed(board.gpu_tops(mode, precision)), "sms", "gpu_mhz")


def _bandwidth(board: Board, mode: Mode) -> str:
    return _figure(mode, _format_speed(board.bandwidth_gb_s(mode)), "emc_mhz")


def _clock(mode: Mode, key: str) -> str:
    return _figure(mode, _format_exact(getattr(mode, key)), key)


def _figure(mode: Mode, text: str, *keys: str) -> str:
    """Return a text, behind ``~`` where one of these keys of a mode is estimated."""
    return f"~{text}" if set(keys) & set(mode.estimated) else text


def _dla_tops(board: Board, mode: Mode) -> str:
    return _text_of_cores([_format_speed(board.dla_tops(mode, "int8", core)) for core in range(mode.dla_cores)])


def _text_of_cores(texts: list[str]) -> str:
    """Return the values of DLA cores as ``2 × 10.1``, or as ``10.1 + 1.9`` where they differ."""
    if not texts:
        return NONE
    return " + ".join(texts) if len(set(texts)) > 1 else f"{len(texts)} × {texts[0]}"


def _format_memory(size_bytes: float) -> str:
    return format_bytes(size_bytes).replace(".0 ", " ")


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _format_speed(value: float | None) -> str:
    """Return TOPS or GB/s with one decimal from 10 on, two below."""
    return UNKNOWN if value is None else f"{value:.{1 if value >= 10 else 2}f}"


def _format_exact(value: float | None) -> str:
    """Return a clock or a count as the board's file has it."""
    return UNKNOWN if value is None else f"{value:g}"


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value(item)}" for key, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return UNKNOWN if value is None else str(value)


# ``edgert models``: families of models, how each is exported, and what is known to work.

FAMILY_HEADINGS = ("family", "decoder", "INT8", "DLA of Orin", "DLA of Xavier")
FAMILY_LEGEND = (
    "INT8 on ONNX Runtime: points gained or lost, agreement with FP32, or signal to noise of outputs; DLA: share of "
    "the multiply-adds after rewrites, by the published rules; ? was not measured."
)


def models(
    family: Annotated[
        str | None,
        typer.Argument(metavar="[FAMILY]", help="Part of a family's name, or a decoder such as yolov8. Default: all."),
    ] = None,
    json: option.Json = None,
) -> None:
    """List the families of models that edgert knows: how each is exported, fed and read, and what is known to work.

    Models come from their makers' own tools; edgert downloads none.

    Examples:
        edgert models
        edgert models rf-detr
        edgert models --json models.json
    """
    from edgert.installation import labels_names
    from edgert.wiring.known import models as known_models

    screen, found = terminal.console(json), known_models(family)
    if family is None:
        columns = [terminal.Column(heading, wraps=rank < 3, rank=rank) for rank, heading in enumerate(FAMILY_HEADINGS)]
        screen.print(terminal.table(columns, [terminal.Row(family_row(one)) for one in found], width=screen.width))
        names = ", ".join(labels_names())
        screen.print(f"{FAMILY_LEGEND} Labels by name: {names}. edgert models FAMILY shows how to export.", style="dim")
    for one in found if family is not None else ():
        _show_family(screen, one)
    terminal.write_json([one.to_json() for one in found], json)


def family_row(known: KnownFamily) -> tuple[str, ...]:
    """Return the cells of a family under :data:`FAMILY_HEADINGS`."""
    decoders = ", ".join(known.family.reads) or "one of your own: edgert new"
    facts = (known.int8, known.dla(2), known.dla(1))
    return (known.family.name, decoders, *(fact or terminal.UNKNOWN for fact in facts))


def _show_family(screen: terminal.Console, known: KnownFamily) -> None:
    family = known.family
    screen.print(family.name, style="bold", markup=False)
    screen.print(terminal.facts([
        ("export", terminal.styled(family.export or "no one command: see its source", "")),
        ("then", terminal.styled("edgert new MODEL.onnx --images PHOTOS", "")),
        ("fed as in", terminal.styled(family.source, "")),
        ("decoder", ", ".join(family.reads) or "edgert new writes a decoder to be filled in")
    ]))  # fmt: skip
    screen.print()
    screen.print(known.recipe, markup=False)
    for one in known.measured:
        shares = [f"DLA of {name} {100 * one.dla[number].share:.0f} % in {one.dla[number].segments}"
                  for number, name in ((2, "Orin"), (1, "Xavier")) if one.dla and number in one.dla]  # fmt: skip
        parts = [f"INT8 {one.int8_text}" if one.int8_text else one.refused, *shares, *one.warnings]
        screen.print(f"• {one.model}, {one.task}: {'; '.join(filter(None, parts))}", markup=False)
    if not known.measured:
        screen.print("• no model of this family was measured", style="dim")
    screen.print()
