"""``edgert schema``, ``validate``, ``check`` and ``new`` for pipeline files, and ``explain`` for their errors."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, progress, terminal
from edgert.errors import ConfigError, nearest
from edgert.installation import pipeline_path

if TYPE_CHECKING:
    from edgert.wiring.check_report import CheckReport


_SHOWN_SETTINGS = 8


def schema(
    event: Annotated[bool, option.flag("--event", "Print the schema of messages that sinks send.")] = False,
) -> None:
    """Print the JSON Schema of the pipeline file, or of the messages that sinks send.

    Editors complete and check YAML with it: make ``# yaml-language-server: $schema=edgert.schema.json`` the first line.

    Example:
        edgert schema > edgert.schema.json
    """
    import json

    from edgert.config import json_schema
    from edgert.stages.sink.send import messages

    typer.echo(json.dumps(messages.schema() if event else json_schema(), indent=2))


def validate(
    pipeline: option.PipelineArgument,
    board: Annotated[str | None, option.board("Sources must work there. Default: this machine.")] = None,
    overrides: option.Set = None,
) -> None:
    """Check a pipeline file and everything it names.

    It opens no camera and runs neither an engine nor your code. It reads the YAML, the models, images and labels, and
    the text of your code, and checks that they fit together. Exit code 1 and the line when something is wrong.

    Examples:
        edgert validate pipeline.yaml --set models.parts.onnx=new.onnx
        edgert validate csi --board thor-t5000
    """
    from edgert.validation import validate as validate_pipeline

    path = pipeline_path(pipeline)
    with progress.show_waiting(f"checking {path}"):
        checked = validate_pipeline(path, overrides=overrides or (), board=board)
    for note in checked.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{path}: fine ({checked})")


def check(
    pipeline: option.PipelineArgument,
    images: Annotated[list[str] | None, option.Photos] = None,
    data: Annotated[str | None, option.data("Instead of --images: settings are ranked by what they score.")] = None,
    model: option.Model = None,
    output: Annotated[Path | None, option.output("The first image, with the best answer drawn on it.")] = None,
    every: option.All = False,
    json: option.Json = None,
    overrides: option.Set = None,
) -> None:
    """Check whether a model is wired right: try plausible settings on images, and name the line that looks wrong.

    Color order, scale, resize and decoder are tried, and ranked by how consistent the answers are. Good answers are
    confirmed by the mirrored image and absent from noise. They also match the training statistics that the model
    stores (the column fit). Labels are optional; with --data they decide. Exit code 0 also when a line looks wrong.

    Examples:
        edgert check pipeline.yaml --images photo.jpg
        edgert check pipeline.yaml --images photos/ --model parts -o best.png --json check.json
        edgert check pipeline.yaml --data dataset/data.yaml --all --set models.parts.task.score=0.2
    """
    from edgert.wiring.check import check as check_wiring
    from edgert.wiring.photos import save_image

    screen = terminal.console(json)
    with progress.counting_bar(screen, rate_of="") as bar:
        report = check_wiring(
            pipeline, images or (), data=data, model=model, overrides=overrides or (), on_progress=bar
        )
    print_check(screen, report, None if every else _SHOWN_SETTINGS)
    if output is not None:
        save_image(report, output)
        screen.print(f"[green]→[/] {output}")
    terminal.write_json(report.to_json(), json)


def print_check(console: terminal.Console, report: CheckReport, limit: int | None) -> None:
    """Print the ranked settings, the verdict, the lines to change, and what the images cannot decide."""
    console.print(_settings_table(report, limit, console.width))
    style = {"fine": "green", "wrong": "red", "unclear": "yellow"}[report.verdict]
    console.print(report.summary, style=f"bold {style}", markup=False)
    for finding in report.findings:
        console.print(f"  {finding.where}", style="bold", markup=False)
        label = "not written, which means" if finding.missing else "written"
        console.print(f"    {label:<8}", terminal.styled(finding.written, "red"))
        console.print(f"    {'better' if finding.sure else 'probably':<8}", terminal.styled(finding.better, "green"))
    if report.known:
        console.print(f"• known beforehand: {report.known}", style="dim", markup=False)
    for tie in report.ties:
        console.print(f"• {tie}", style="dim", markup=False)
    images = f"{len(report.photos)} image{'' if len(report.photos) == 1 else 's'}"
    console.print(f"[dim]{images}, {report.runs} runs of the engine[/]")


def _write_ros_package(name: str, model: Path | None) -> None:
    from edgert.wiring.ros_package import write_package

    if model is not None:
        raise typer.BadParameter(f"a package is written first; then: edgert new {model} -o {name}/config/{name}.yaml")
    console = terminal.console()
    for path in write_package(name, Path()):
        console.print("[green]→[/]", terminal.styled(str(path), ""))
    console.print(f"next: colcon build, source install/setup.bash, ros2 launch {name} {name}.launch.py", markup=False)


def _settings_table(report: CheckReport, limit: int | None, width: int) -> terminal.Table:
    shown = [row for n, row in enumerate(report.rows) if limit is None or n < limit or row.written]
    tasks = {row.names["task"] for row in shown}
    groups = ["color", "scale", "placement", *(["task"] if len(tasks) > 1 else [])]
    columns = (
        terminal.Column(""),
        *(terminal.Column(heading, wraps=True) for heading in groups),
        terminal.Column("score", is_number=True),
        terminal.Column("answers", is_number=True, rank=2),
        *([terminal.Column("fit", is_number=True, rank=2)] if shown[0].memory else []),
        terminal.Column("behind", is_number=True, rank=1),
    )
    rows = []
    for row in shown:
        names = (row.names[group].rpartition(": ")[2] for group in groups)  # all tasks have the same verb
        memory = [f"{sum(row.memory.values()) / len(row.memory):.2f}"] if row.memory else []
        scores = [f"{row.score:.2f}", f"{row.answers:.2f}", *memory, f"{row.behind:.1f} σ" if row.behind else ""]
        rows.append(terminal.Row(("→" if row.written else "", *names, *scores), "bold" if row.written else ""))
    hidden = len(report.rows) - len(shown)
    caption = "→ as the file has it" + (f"; {hidden} more that were tried: --all" if hidden else "")
    return terminal.table(columns, rows, width=width, title=f"model {report.model}", caption=caption)


def new(
    model: Annotated[Path | None, typer.Argument(metavar="MODEL.onnx", help="ONNX model that takes one image.")] = None,
    images: Annotated[list[str] | None, option.Photos] = None,
    output: Annotated[Path, option.output("The pipeline file.")] = Path("pipeline.yaml"),
    source: Annotated[
        str,
        option.named("--source", "SOURCE", "Source of the images: a camera, a video, a folder or an rtsp:// address."),
    ] = "v4l2:///dev/video0",
    force: Annotated[bool, option.flag("--force", "Replace the file if it exists already.")] = False,
    own: Annotated[
        bool,
        option.flag(
            "--own-decoder", "Write a decoder to be filled in, with a test, also where edgert has one that fits."
        ),
    ] = False,
    ros2: Annotated[str, option.named("--ros2", "NAME", "Write a package of ROS 2 with a pipeline, for colcon.")] = "",
) -> None:
    """Write a commented starter pipeline for a model.

    It reads the model's inputs and outputs, guesses task, decoder, size and color, and prints each guess with its
    reason. With images it tries the guesses out, as edgert check does, and writes down the best. Without, it takes
    those of a source file, unless the model's family is known. Where no decoder reads the outputs, it writes a decoder
    for you to fill in beside the file, with a test. These two never replace a file.
    Class names that the exporter put beside the model are written beside the file, too.

    Examples:
        edgert new parts.onnx
        edgert new parts.onnx --images photo.jpg --source clip.mp4 --output parts.yaml --force
        edgert new --ros2 dock_camera
    """
    if ros2:
        _write_ros_package(ros2, model)
        return
    if model is None:
        raise typer.BadParameter("give MODEL.onnx, or --ros2 NAME. For example: edgert new parts.onnx")
    from edgert.wiring.starter import images_of, new as write_starter

    console = terminal.console()
    with progress.counting_bar(console, rate_of="") as bar:
        made = write_starter(model, output, images=images or (), source=source, own=own, force=force, on_progress=bar)
    written = made.files
    for note in made.notes:
        console.print(f"• {note}", markup=False)
    for path in written:
        console.print("[green]→[/]", terminal.styled(str(path), ""))
    file, photo = (shlex.quote(str(one)) for one in (output, next(iter(images_of(source)), "photo.jpg")))
    hint = f"edgert run {file}" if made.report else f"edgert check {file} --images {photo}"
    hint = f"pytest {written[2]}, and fill in {written[1]}" if made.stub else hint
    console.print(f"next: {hint}", markup=False)


# ``edgert explain``: the page about an error, by its code.

PAGES = Path(__file__).resolve().parents[1] / "explanations.md"


def explain(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Code of an error, such as E103.")] = None,
) -> None:
    """Explain an error: what it means, what causes it, and what to do.

    Without a code, list all that have a page. An error that has one ends with the line "more: edgert explain CODE".

    Examples:
        edgert explain
        edgert explain E103
    """
    found, screen = explanations(), terminal.console()
    if code is None:
        for one, text in found.items():
            screen.print(f"{one}  {explanation_title(text)}", markup=False, highlight=False, soft_wrap=True)
        return
    wanted = code.upper()
    if wanted not in found:
        fix = "edgert explain lists the codes that have a page"
        raise ConfigError(f"no page about {code!r}{nearest(wanted, found)}", fix=fix)
    from rich.markdown import Markdown

    screen.print(Markdown(found[wanted]) if screen.is_terminal else found[wanted], markup=False, soft_wrap=True)


def explanations() -> dict[str, str]:
    """Return code → page about it, in Markdown."""
    parts = PAGES.read_text(encoding="utf-8").split("\n## ")
    texts = [part.removeprefix("## ").strip() for part in parts]
    return {text.partition(":")[0]: f"## {text}" for text in texts}


def explanation_title(page: str) -> str:
    """Return the title of a page, without its code."""
    return page.partition("\n")[0].partition(": ")[2]
