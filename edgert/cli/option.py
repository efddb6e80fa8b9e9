"""Arguments and options of the verbs: a name means the same with every verb.

An option whose help differs from verb to verb is a function, which takes the sentence that ends the help.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from edgert.units import whole_number

_LARGEST_NUMBER = 10**9


class Verb(typer.core.TyperCommand):
    """A verb of the command line. It refuses numbers that are not finite, because typer's ``min=`` accepts nan."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises BadParameter with an example when none was given to a verb that needs one."""
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
        """Run the verb. Raises BadParameter: a number is not finite or too large."""
        for name, value in ctx.params.items():
            if isinstance(value, (int, float)) and not abs(value) <= _LARGEST_NUMBER:
                why = f"{value!r} is not a number from -{_LARGEST_NUMBER} to {_LARGEST_NUMBER}"
                raise typer.BadParameter(why, ctx=ctx, param_hint=f"--{name.replace('_', '-')}")
        return super().invoke(ctx)


def _complete_pipeline(incomplete: str) -> list[str]:
    """Return the shipped pipelines that complete a word; without any, the shell completes file names."""
    from edgert.installation import pipeline_names

    return [name for name in pipeline_names() if incomplete and name.startswith(incomplete)]


def _complete_board(incomplete: str) -> list[str]:
    from edgert.board.record import board_names

    return [name for name in (*board_names(), "host", "all") if name.startswith(incomplete)]


def named(name: str, metavar: str, help: str, **more: Any) -> Any:
    """Return an option with a value."""
    return typer.Option(name, metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=help)


PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Pipeline file, or name of a shipped pipeline such as hello.",
        autocompletion=_complete_pipeline,
    ),
]
BundleArgument = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="Pipeline file, bundle of edgert build, or name of a shipped pipeline such as hello.",
        autocompletion=_complete_pipeline,
    ),
]
SourceArgument = Annotated[
    str, typer.Argument(metavar="MODEL.onnx|PIPELINE", help="ONNX file, or pipeline file that names the model.")
]
Set = Annotated[
    list[str] | None,
    named("--set", "KEY=VALUE", "Override a key of the pipeline file, such as stages.camera.fps=15. Repeatable."),
]
Json = Annotated[
    Path | None,
    named(
        "--json",
        "FILE",
        "Write the result as JSON to this file; - is standard output.",
        dir_okay=False,
        allow_dash=True,
    ),
]
Report = Annotated[Path | None, named("--report", "FILE", "Write the result as one HTML page.", dir_okay=False)]
Profiles = Annotated[
    list[Path] | None,
    named(
        "--profile",
        "FILE",
        "Use measured times: of edgert bench --units, of a bundle finished on its board, or of edgert bench "
        "--share. Repeatable.",
    ),
]
Strict = Annotated[
    bool,
    flag("--strict", "Fail where an engine would fall back to the next of its chain, or nodes would leave the DLA."),
]
Signers = Annotated[
    Path | None,
    named(
        "--signers",
        "FILE",
        "Accept only bundles that are signed by a key of this allowed_signers file. "
        "Default: /etc/edgert/allowed_signers, if it exists.",
        dir_okay=False,
    ),
]
All = Annotated[bool, flag("--all", "Show every row of the table, not only those that matter most.")]
Duration = typer.Option(
    "--duration", metavar="SECONDS", min=0.1, help="Stop after this many seconds, real or simulated."
)
Task = Annotated[
    str | None,
    named("--task", "TEXT", "Task of an ONNX file, as in YAML: 'detect yolox labels=names.txt', for example."),
]
Input = Annotated[
    str | None,
    named("--input", "TEXT", "Preprocessing of an ONNX file, as in YAML: 'letterbox rgb mean=0 std=255', for example."),
]
Method = Annotated[
    str | None, named("--method", "NAME", "Calibration method: mse, minmax, percentile, entropy or auto. Default: mse.")
]
Ranges = Annotated[
    Path | None, named("--ranges", "FILE", "Read the ranges that edgert calibrate wrote, instead of measuring them.")
]
Metric = Annotated[
    str | None,
    named(
        "--metric",
        "NAME",
        "Accuracy metric: map, map50, mask_map, obb_map, oks_map, top1, top5, miou, cer, exact, abs_rel, rmse, "
        "delta1, psnr, ssim, hota, idf1, retrieval, cosine or agreement. Default: the pipeline's accuracy: metric.",
    ),
]
MaxDrop = Annotated[
    float | None,
    named(
        "--max-drop",
        "0-1",
        "Largest accepted loss of the metric; 0.01 is one point. Default: the pipeline's accuracy: max_drop.",
        min=0,
        max=1,
    ),
]
Shape = Annotated[
    list[str] | None, named("--shape", "INPUT=1x3x320x320", "Fix the shape of a dynamic input. Repeatable.")
]


def _option_ending(meaning: str, metavar: str, *names: str, **more: Any) -> Callable[[str], Any]:
    """Return a function that makes an option, whose help is ``meaning`` and then the verb's own sentence."""
    return lambda sentence: typer.Option(*names, metavar=metavar, help=f"{meaning} {sentence}", **more)


board = _option_ending("Name or file of the board.", "BOARD", "--board", "-b", autocompletion=_complete_board)
mode = _option_ending("Power mode of the board, such as 15W.", "MODE", "--mode")
trt = _option_ending("TensorRT version to build engines for, such as 10.3.", "VERSION", "--trt")
model = _option_ending("Name of the pipeline's model to work on.", "NAME", "--model")
output = _option_ending("Path of the file or folder to write.", "PATH", "--output", "-o")
images = _option_ending("Typical images, in a folder or a file.", "PATH", "--images")
data = _option_ending(
    "Labeled images: COCO .json, YOLO folder or data.yaml, Pascal VOC, MOT sequence, .csv of file,label_index, a "
    "folder per class, or images/ and masks/.",
    "PATH",
    "--data",
)
limit = _option_ending("Use at most this many images.", "N", "--limit", min=1)
target = _option_ending("Engine to make the INT8 model for: ort, gpu or dla.", "NAME", "--target")
dask = _option_ending(
    "Address of a Dask scheduler, whose workers do the work; needs the extra dask.", "ADDRESS", "--dask"
)
precision = _option_ending("Precision of the model: int8 or fp16.", "NAME", "--precision")
Data = Annotated[str | None, data("Images without labels work too. Default: the pipeline's accuracy: dataset.")]
Model = Annotated[str | None, model("Needed where the pipeline has several.")]
Board = Annotated[str | None, board("Default: the pipeline's.")]
Trt = Annotated[str | None, trt("Default: that of the board's JetPack.")]
CalibrationImages = Annotated[
    str | None, images("For INT8 calibration: also a glob, a .txt of paths or a video; 100 to 500 images are good.")
]
Photos = images("Settings are tried on them, or on frames of a video; several give a surer answer. Repeatable.")


def refuse(options: Mapping[str, object], why: str) -> None:
    """Check that none of these options was given. Raises BadParameter: one was, with ``why`` as the message."""
    for option, value in options.items():
        if value:
            raise typer.BadParameter(why, param_hint=option)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return ``images=1x3x320x320`` as a name and a shape; names may have ``=`` and colons. Raises BadParameter."""
    name, equals, sizes = text.rpartition("=")
    numbers = tuple(filter(None, map(whole_number, sizes.lower().split("x"))))
    if not equals or not name or len(numbers) <= sizes.lower().count("x"):
        raise typer.BadParameter(f"cannot understand {text!r}; write INPUT=1x3x320x320", param_hint="--shape")
    return name, numbers
