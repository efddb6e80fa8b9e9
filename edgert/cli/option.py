"""Arguments that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edgert.config import PipelineFile

PipelineArgument = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A pipeline file, or the name of a shipped one, like hello.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. stages.camera.fps=15. Repeatable."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Measured times: of a model with --board host (edgert bench --profile), of a board a bundle finished "
        "there.",
    ),
]
PageOption = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write it as one HTML page.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def pipeline_path(name: str) -> Path:
    """The file a PIPELINE argument means: a path that exists, else a shipped pipeline of that name."""
    from edgert.shipped import pipeline_named

    path = Path(name)
    return path if path.exists() else pipeline_named(name) or path


def bundle_of(file: PipelineFile) -> Path:
    """The bundle that a pipeline makes when none is named."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in file.config.name)
    return Path(f"{name or 'pipeline'}.edgert")


def refuse(options: Mapping[str, object], why: str) -> None:
    """A usage error for the first of these options that was given."""
    for option, value in options.items():
        if value:
            raise typer.BadParameter(why, param_hint=option)


def write_json(data: object, path: Path) -> None:
    """Writes plain data as JSON to a file, whole or not at all, or to standard output for ``-``.

    Raises:
        ArtifactError: the file cannot be written.
    """
    import json

    text = json.dumps(data, indent=2, default=str) + "\n"
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    from edgert.artifact.atomic import replace_text

    replace_text(path, text)


def echo_line(data: object) -> None:
    """Prints plain data as one line of JSON."""
    import json

    typer.echo(json.dumps(data))
