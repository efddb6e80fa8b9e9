"""``edgert new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli.option import DebugOption


def new(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX model that takes one picture.")],
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="PATH", help="A photo or folder to try settings on. Repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "pipeline.yaml"
    ),
    source: Annotated[
        str, typer.Option("--source", metavar="SOURCE", help="Camera, video, folder, rtsp://...")
    ] = "v4l2:///dev/video0",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a commented starter pipeline for a model.

    Reads the model's inputs and outputs, guesses task, decoder, size and colour, and says what it guessed and why. With
    a photo it tries the guesses out, as edgert check does, and writes down the best.

    Examples:

        edgert new parts.onnx

        edgert new parts.onnx --image photo.jpg --source clip.mp4 --output parts.yaml
    """
    from rich.console import Console
    from rich.markup import escape

    from edgert.cli.check import progress_bar
    from edgert.wiring.starter import starter
    from edgert.wiring.write import refuse_existing, write_pipeline

    console = Console(highlight=False)
    refuse_existing(output, force)
    with progress_bar(console) as progress:
        made = starter(model, image or (), source, directory=output.parent, progress=progress)
    write_pipeline(made.text, output, force)
    for note in made.notes:
        console.print(f"• {escape(note)}")
    console.print(f"[green]→[/] {escape(str(output))}")
    hint = f"edgert check {output} --image photo.jpg" if not image else f"edgert run {output}"
    console.print(f"next: {escape(hint)}")
