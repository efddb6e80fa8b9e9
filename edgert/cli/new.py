"""``edgert new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli.option import DebugOption, PhotosOption, output_option


def new(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="ONNX model that takes one image.")],
    images: Annotated[list[str] | None, PhotosOption] = None,
    output: Annotated[Path, output_option("The pipeline file.")] = Path("pipeline.yaml"),
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="SOURCE",
            help="Source of the images: a camera, a video, a folder or an rtsp:// address.",
        ),
    ] = "v4l2:///dev/video0",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists already.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a commented starter pipeline for a model.

    Reads the model's inputs and outputs, guesses task, decoder, size and color, and says what it guessed and why. With
    images it tries the guesses out, as edgert check does, and writes down the best.

    Examples:

        edgert new parts.onnx

        edgert new parts.onnx --images photo.jpg --source clip.mp4 --output parts.yaml
    """
    from rich.console import Console
    from rich.markup import escape

    from edgert.cli.check import progress_bar
    from edgert.wiring.starter import starter
    from edgert.wiring.write import refuse_existing, write_pipeline

    console = Console(highlight=False)
    refuse_existing(output, force)
    with progress_bar(console) as progress:
        made = starter(model, images or (), source, directory=output.parent, progress=progress)
    write_pipeline(made.text, output, force)
    for note in made.notes:
        console.print(f"• {escape(note)}")
    console.print(f"[green]→[/] {escape(str(output))}")
    hint = f"edgert check {output} --images photo.jpg" if not images else f"edgert run {output}"
    console.print(f"next: {escape(hint)}")
