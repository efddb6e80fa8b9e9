"""The user's own code that a pipeline names, to be packed with it."""

from __future__ import annotations

from pathlib import Path

from edgert.config import PipelineConfig
from edgert.errors import ArtifactError, cause


def code_files(config: PipelineConfig, directory: Path) -> dict[str, bytes]:
    """Member → content: modules and packages that stand beside the pipeline file. Installed ones stay where they are.

    Raises:
        ArtifactError: a file cannot be read.
    """
    found = {}
    for top in sorted({spec.partition(":")[0].partition(".")[0] for spec in config.code.values()}):
        package = directory / top
        files = sorted(package.rglob("*.py")) if package.is_dir() else [directory / f"{top}.py"]
        for path in files:
            if path.is_file():
                found[path.relative_to(directory).as_posix()] = _content(path)
    return found | {name: _content(path) for path, name in operator_members(config, directory).items()}


def operator_members(config: PipelineConfig, directory: Path) -> dict[Path, str]:
    """File of operators → its member: where it stands beside the pipeline file, else its name."""
    beside = directory.absolute()
    return {
        path: path.absolute().relative_to(beside).as_posix() if path.absolute().is_relative_to(beside) else path.name
        for path in config.ops
    }


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {str(path)!r}", why=cause(error), fix="check its permissions") from error
