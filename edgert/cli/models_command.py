"""``edgert models``: families of models, how each is exported, and what is known to work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, terminal

if TYPE_CHECKING:
    from edgert.wiring.known import KnownFamily

HEADINGS = ("family", "decoder", "INT8", "DLA of Orin", "DLA of Xavier")
LEGEND = (
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
    """
    from edgert.installation import labels_names
    from edgert.wiring.known import models as known_models

    screen, found = terminal.console(json), known_models(family)
    if family is None:
        columns = [terminal.Column(heading, wraps=rank < 3, rank=rank) for rank, heading in enumerate(HEADINGS)]
        screen.print(terminal.table(columns, [terminal.Row(row(one)) for one in found], width=screen.width))
        names = ", ".join(labels_names())
        screen.print(f"{LEGEND} Labels by name: {names}. edgert models FAMILY shows how to export.", style="dim")
    for one in found if family is not None else ():
        _show(screen, one)
    terminal.write_json([one.to_json() for one in found], json)


def row(known: KnownFamily) -> tuple[str, ...]:
    """Return the cells of a family under :data:`HEADINGS`."""
    decoders = ", ".join(known.family.reads) or "one of your own: edgert new"
    facts = (known.int8, known.dla(2), known.dla(1))
    return (known.family.name, decoders, *(fact or terminal.UNKNOWN for fact in facts))


def _show(screen: terminal.Console, known: KnownFamily) -> None:
    family = known.family
    screen.print(family.name, style="bold", markup=False)
    screen.print(terminal.facts([
        ("export", terminal.marked(family.export or "no one command: see its source", "")),
        ("then", terminal.marked("edgert new MODEL.onnx --images PHOTOS", "")),
        ("fed as in", terminal.marked(family.source, "")),
        ("reads", ", ".join(family.reads) or "edgert new writes a decoder to be filled in"),
    ]))  # fmt: skip
    screen.print()
    screen.print(known.recipe, markup=False)
    for one in known.measured:
        shares = [f"DLA of {name} {100 * one.dla[number].share:.0f} % in {one.dla[number].segments}"
                  for number, name in ((2, "Orin"), (1, "Xavier")) if one.dla and number in one.dla]  # fmt: skip
        parts = [f"INT8 {one.int8_text}" if one.int8_text else one.refused, *shares, *one.warnings]
        screen.print(f"• {one.model}, {one.task}: {'; '.join(filter(None, parts))}", markup=False)
    if not known.measured:
        screen.print("• nothing was measured of a model of it", style="dim")
    screen.print()
