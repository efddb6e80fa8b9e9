"""``edgert validate``."""

from __future__ import annotations

import typer

from edgert.cli.option import DebugOption, PipelineArgument, SetOption
from edgert.shipped import pipeline_path


def validate(pipeline: PipelineArgument, overrides: SetOption = None, debug: DebugOption = False) -> None:
    """Check a pipeline file and everything it names.

    Opens no camera, runs no engine and none of your code. Reads the YAML, the models, images and labels, and the
    text of your code, and fits them together. Exit code 1 and the line when something is wrong.

    Example: edgert validate pipeline.yaml --set models.parts.onnx=new.onnx
    """
    from edgert.validate import validate as validate_pipeline

    path = pipeline_path(pipeline)
    checked = validate_pipeline(path, overrides or ())
    typer.echo(f"{path}: fine ({checked})")
