"""``edgert gallery``: list the names of a gallery, add images to it, or remove a name."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from edgert.cli import option, terminal


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
    from edgert.config import load_pipeline
    from edgert.errors import ConfigError, nearest
    from edgert.evaluation.enroll import enroll, gallery_model
    from edgert.installation import pipeline_path
    from edgert.stages.gallery import Gallery

    screen = terminal.console(json)
    if add is not None and remove is not None:
        option.refuse({"--remove": remove}, "--add or --remove, one at a time")
    if (add is None) != (not images):
        option.refuse({"--images": images, "--add": add}, "--add NAME and --images go together")
    if Path(source).suffix in (".npz", ".json"):
        option.refuse({"--add": add, "--model": model, "--set": overrides}, "name a pipeline: its model makes vectors")
        path = Path(source)
    else:
        config, _ = gallery_model(load_pipeline(pipeline_path(source), overrides or ()), model)
        path = config.task.match  # type: ignore[union-attr,assignment]
    if add is not None:
        for one in enroll(pipeline_path(source), add, images or (), model=model, overrides=overrides or ()):
            like = f"most like {one.nearest}, {one.similarity:.2f}" if one.nearest else "the first vector"
            style = "yellow" if one.nearest not in ("", add) else ""
            screen.print(f"{one.image}: {like}", style=style, markup=False)
    found = Gallery(path)
    if remove is not None:
        if not (gone := found.remove(remove)):
            known = f"it holds {', '.join(sorted(set(found.names))[:5])}" if len(found) else "it is empty"
            raise ConfigError(f"no {remove!r} in {found.path}{nearest(remove, set(found.names))}", why=known)
        screen.print(f"removed {gone} vector{'' if gone == 1 else 's'} of {remove}", markup=False)
    counts = dict(sorted(Counter(found.names).items()))
    columns = (terminal.Column("name"), terminal.Column("vectors", is_number=True))
    if counts:
        rows = [terminal.Row((name, str(count))) for name, count in counts.items()]
        screen.print(terminal.table(columns, rows, width=screen.width))
    screen.print(f"{len(counts)} names, {len(found)} vectors in {found.path}", style="dim", markup=False)
    terminal.write_json({"gallery": str(found.path), "names": counts}, json)
