"""Does a pipeline fit together? Everything short of opening cameras and running engines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edgert.assemble import assemble
from edgert.config import PipelineFile, SourceStage, load_pipeline
from edgert.errors import ConfigError


def validate(path: str | Path, overrides: Iterable[str] = ()) -> str:
    """Checks a pipeline file, its models, labels and the user's code.

    Every stage is built, on engines that have the models' inputs and outputs but do not run, so that whatever
    ``edgert run`` would refuse at its start is refused here.

    Returns:
        A line saying what was checked.

    Raises:
        EdgertError: the first thing that is wrong; further mistakes of the file itself in ``others``.
    """
    file = load_pipeline(path, overrides)
    _check_source_files(file)
    assembly = assemble(file, backend_name="null")
    assembly.close()
    models = len(assembly.engines)
    return f"{len(file.config.stages)} stages, {models} model{'' if models == 1 else 's'}"


def _check_source_files(file: PipelineFile) -> None:
    folder = file.document.path.parent
    for name, stage in file.config.stages.items():
        if not isinstance(stage, SourceStage) or ":" in stage.source or stage.source == "api":
            continue
        if not (folder / Path(stage.source).expanduser()).exists():
            raise ConfigError(
                f"stage {name!r} reads {stage.source!r}, which does not exist",
                why=f"looked in {folder.resolve()}",
                where=file.where("stages", name, "source"),
            )
