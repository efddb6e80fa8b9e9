"""Arguments and options of the verbs: a name means the same with every verb.

Options that differ from verb to verb are functions; they take the verb's own sentence on the default or purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from edgert.units import whole_number

if TYPE_CHECKING:
    from edgert.config import PipelineFile

_LARGEST = 10**9


class Verb(typer.core.TyperCommand):
    """A verb whose numbers are finite: typer's ``min=`` and ``max=`` let some ``nan`` and ``inf`` through."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; where they are missing, the error has an example."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            examples = [line.strip() for line in (self.help or "").splitlines() if line.strip().startswith("edgert ")]
            if not typed and examples:
                needed = next(one.metavar or one.name.upper() for one in self.params if one.required)
                message = f"edgert {self.name} needs {needed}. For example: {examples[0]}"
                error.format_message = lambda: message  # type: ignore[method-assign]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Raises BadParameter: a number is out of range."""
        for name, value in ctx.params.items():
            if isinstance(value, (int, float)) and not abs(value) <= _LARGEST:
                why = f"{value!r} is not a number from -{_LARGEST} to {_LARGEST}"
                raise typer.BadParameter(why, ctx=ctx, param_hint=f"--{name.replace('_', '-')}")
        return super().invoke(ctx)


def _pipelines(incomplete: str) -> list[str]:
    """Return shipped pipelines that begin so, for the shell; without any it completes names of files."""
    from edgert.installation import pipeline_names

    return [name for name in pipeline_names() if incomplete and name.startswith(incomplete)]


def _boards(incomplete: str) -> list[str]:
    """Return boards that begin so, for the shell."""
    from edgert.board.record import board_names

    return [name for name in (*board_names(), "host", "all") if name.startswith(incomplete)]


PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Pipeline file, or name of a shipped pipeline such as hello.",
        autocompletion=_pipelines,
    ),
]
BundleArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Pipeline file, bundle of edgert build, or name of a shipped pipeline such as hello.",
        autocompletion=_pipelines,
    ),
]
SourceArgument = Annotated[
    str, typer.Argument(metavar="MODEL.onnx|PIPELINE", help="ONNX file, or pipeline file that names the model.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the pipeline file, such as stages.camera.fps=15. Repeatable.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        dir_okay=False,
        allow_dash=True,
        help="Write the result as JSON to this file; - is standard output.",
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", dir_okay=False, help="Write the result as one HTML page.")
]
Profiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Use measured times: of edgert bench --units, of a bundle finished on its board, or of edgert bench "
        "--share. Repeatable.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail where an engine would fall back to the next of its chain, or nodes would leave the DLA.",
    ),
]
Signers = Annotated[
    Path | None,
    typer.Option(
        "--signers",
        metavar="FILE",
        dir_okay=False,
        help="Accept only bundles that are signed by a key of this allowed_signers file. "
        "Default: /etc/edgert/allowed_signers, if it exists.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show every row of the table, not only those that matter most.")]
Duration = typer.Option(
    "--duration", metavar="SECONDS", min=0.1, help="Stop after this many seconds, real or simulated."
)
Task = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="TEXT", help="Task of an ONNX file, as in YAML: 'detect yolox labels=names.txt', for example."
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="TEXT",
        help="Preprocessing of an ONNX file, as in YAML: 'letterbox rgb mean=0 std=255', for example.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Calibration method: mse, minmax, percentile, entropy or auto. Default: mse.",
    ),
]
Ranges = Annotated[
    Path | None,
    typer.Option(
        "--ranges", metavar="FILE", help="Read the ranges that edgert calibrate wrote, instead of measuring them."
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Accuracy metric: map, map50, mask_map, obb_map, oks_map, top1, top5, miou, cer, exact, abs_rel, rmse, "
        "delta1, psnr, ssim, hota, idf1, retrieval, cosine or agreement. Default: the pipeline's accuracy: metric.",
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        metavar="0-1",
        min=0,
        max=1,
        help="Largest accepted loss of the metric; 0.01 is one point. Default: the pipeline's accuracy: max_drop.",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="INPUT=1x3x320x320",
        help="Fix the shape of an input that is dynamic. Repeatable.",
    ),
]


def _shared(meaning: str, metavar: str, *names: str, **more: Any) -> Callable[[str], Any]:
    """Return an option whose help ends in a sentence of the verb's own."""
    return lambda sentence: typer.Option(*names, metavar=metavar, help=f"{meaning} {sentence}", **more)


board = _shared("Name or file of the board.", "BOARD", "--board", "-b", autocompletion=_boards)
mode = _shared("Power mode of the board, such as 15W.", "MODE", "--mode")
trt = _shared("TensorRT version to build engines for, such as 10.3.", "VERSION", "--trt")
model = _shared("Name of the pipeline's model to work on.", "NAME", "--model")
output = _shared("Path of the file or folder to write.", "PATH", "--output", "-o")
images = _shared("Typical images, in a folder or a file.", "PATH", "--images")
data = _shared(
    "Labeled images: COCO .json, YOLO folder or data.yaml, Pascal VOC, MOT sequence, .csv of file,label_index, a "
    "folder per class, or images/ and masks/.",
    "PATH",
    "--data",
)
limit = _shared("Use at most this many images.", "N", "--limit", min=1)
target = _shared("Engine to make the INT8 model for: ort, gpu or dla.", "NAME", "--target")
dask = _shared("Address of a Dask scheduler, whose workers do the work; needs the extra dask.", "ADDRESS", "--dask")
precision = _shared("Precision of the model: int8 or fp16.", "NAME", "--precision")
Data = Annotated[str | None, data("Images without labels work too. Default: the pipeline's accuracy: dataset.")]
Model = Annotated[str | None, model("Needed where the pipeline has several.")]
Board = Annotated[str | None, board("Default: the pipeline's.")]
Trt = Annotated[str | None, trt("Default: that of the board's JetPack.")]
CalibrationImages = Annotated[
    str | None,
    images("For INT8 calibration: also a glob, a .txt of paths or a video; 100 to 500 images are good."),
]
Photos = images("Settings are tried on them; several images decide more. Repeatable.")


def bundle_of(file: PipelineFile) -> Path:
    """Return the bundle that a pipeline makes when none is named."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in file.config.name)
    return Path(f"{name or 'pipeline'}.edgert")


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise a usage error for the first of these options that was given. Raises BadParameter: one of them was given."""
    for option, value in options.items():
        if value:
            raise typer.BadParameter(why, param_hint=option)


def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
    """Return ``images=1x3x320x320`` as a name and its sizes; names may have ``=``, colons and slashes.

    Raises:
        BadParameter: it is something else.
    """
    name, equals, sizes = text.rpartition("=")
    numbers = tuple(filter(None, map(whole_number, sizes.lower().split("x"))))
    if not equals or not name or len(numbers) <= sizes.lower().count("x"):
        raise typer.BadParameter(f"cannot understand {text!r}; write INPUT=1x3x320x320", param_hint="--shape")
    return name, numbers
