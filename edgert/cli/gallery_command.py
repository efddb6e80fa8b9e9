"""``edgert gallery``: list the names of a gallery, add images to it, or remove a name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, terminal

if TYPE_CHECKING:
    from edgert.stages.gallery import Gallery


def gallery(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE|GALLERY",
            help="Pipeline file whose model has match:, or the gallery itself.",
        ),
    ],
    add: Annotated[
        str | None, option.named("--add", "NAME", "Add a vector of each of --images under this name.")
    ] = None,
    images: Annotated[
        list[str] | None,
        option.images("Those of --add; each shows one of what is named, as crop: would cut it out. Repeatable."),
    ] = None,
    remove: Annotated[str | None, option.named("--remove", "NAME", "Remove all vectors of this name.")] = None,
    model: option.Model = None,
    json: option.Json = None,
    overrides: option.Set = None,
) -> None:
    """List the names in a gallery; add images to it, or remove a name.

    Running pipelines use the change within a second. For every added image, the name that was most like it before is
    shown: if it is another name than its own, check the image.

    Examples:
        edgert gallery door.yaml --add Anna --images photos/anna
        edgert gallery door.yaml
        edgert gallery door.yaml --model faces --set models.faces.onnx=new.onnx --json -
        edgert gallery staff.npz --remove Anna
    """
    from edgert.errors import ConfigError, nearest
    from edgert.stages.gallery import Gallery

    screen = terminal.console(json)
    if add is not None and remove is not None:
        option.refuse({"--remove": remove}, "--add or --remove, one at a time")
    if (add is None) != (not images):
        option.refuse({"--images": images, "--add": add}, "--add NAME and --images go together")
    is_file = Path(source).suffix in (".npz", ".json")
    if is_file:
        option.refuse({"--add": add, "--model": model, "--set": overrides}, "name a pipeline: its model makes vectors")
    found = Gallery(source if is_file else _gallery_path(source, model, overrides))
    if add is not None and images:
        _add_images(screen, source, add, images, model, overrides)
        found = Gallery(found.path)
    if remove is not None:
        if not (gone := found.remove(remove)):
            known = f"it holds {', '.join(sorted(set(found.names))[:5])}" if len(found) else "it is empty"
            raise ConfigError(f"no {remove!r} in {found.path}{nearest(remove, set(found.names))}", why=known)
        screen.print(f"removed {gone} vector{'' if gone == 1 else 's'} of {remove}", markup=False)
    _show_names(screen, found)
    terminal.write_json({"gallery": str(found.path), "names": dict(Counter(found.names))}, json)


def _gallery_path(source: str, model: str | None, overrides: list[str] | None) -> Path:
    from edgert.config import load_pipeline
    from edgert.evaluation.enroll import gallery_model
    from edgert.installation import pipeline_path

    config, _ = gallery_model(load_pipeline(pipeline_path(source), overrides or ()), model)
    path: Path = config.task.match  # type: ignore[union-attr,assignment]
    return path


def _add_images(
    screen: terminal.Console,
    source: str,
    name: str,
    images: list[str],
    model: str | None,
    overrides: list[str] | None,
) -> None:
    from edgert.evaluation.enroll import enroll
    from edgert.installation import pipeline_path

    for one in enroll(pipeline_path(source), name, images, model=model, overrides=overrides or ()):
        style, like = "", "the first vector"
        if one.nearest:
            like = f"most like {one.nearest}, {one.similarity:.2f}"
            style = "" if one.nearest == name else "yellow"
        screen.print(f"{one.image}: {like}", style=style, markup=False)


def _show_names(screen: terminal.Console, found: Gallery) -> None:
    columns = (terminal.Column("name"), terminal.Column("vectors", is_number=True))
    rows = [terminal.Row((name, str(count))) for name, count in sorted(Counter(found.names).items())]
    if rows:
        screen.print(terminal.table(columns, rows, width=screen.width))
    screen.print(f"{len(rows)} names, {len(found)} vectors in {found.path}", style="dim", markup=False)
