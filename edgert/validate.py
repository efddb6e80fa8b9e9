"""Does a pipeline fit together? Everything short of opening cameras and running engines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edgert.assemble import assemble
from edgert.config import load_pipeline


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
    assembly = assemble(file, backend_name="null")
    assembly.close()
    models = len(assembly.engines)
    return f"{len(file.config.stages)} stages, {models} model{'' if models == 1 else 's'}"
