"""What holds for each stage that fails or hangs: what the file says, or else what suits it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from edgert.config import stages as section
from edgert.errors import ConfigError
from edgert.policy import OnError
from edgert.runtime.branches import Branch
from edgert.runtime.recovery import FailurePolicy
from edgert.stages.source.kinds import starts_over


def is_endless(stages: Iterable[section.StageConfig], directory: Path) -> bool:
    """Whether frames may come for ever, as those of cameras do; a recording is run again where something failed."""
    sources = (stage for stage in stages if isinstance(stage, section.SourceStage))
    return not all(starts_over(stage, directory) for stage in sources)


def failure_policy_of(stage: section.StageConfig, watchdog_s: float, endless: bool) -> FailurePolicy:
    """What holds for a stage.

    Args:
        watchdog_s: of the pipeline.
        endless: see :func:`is_endless`: what nobody in the pipeline listens to must then not stop the others.
    """
    suits: OnError = "stop"
    if endless and isinstance(stage, section.SinkStage):
        suits = "log" if stage.sink == "callback" else "restart" if "restart" in stage.on_errors else "drop"
    own_s = None if isinstance(stage, section.SourceStage) else stage.watchdog
    return FailurePolicy(stage.on_error or suits, stage.on_error is not None, watchdog_s if own_s is None else own_s)


def check_goes_on(name: str, stage: section.InferStage, branches: Sequence[Branch], on_gpu: bool) -> None:
    """Raises ConfigError where a model is to be tried again after a failure, or left out, and cannot be."""
    if stage.on_error in (None, "stop"):
        return
    why = "what failed on a GPU takes the whole process with it" if on_gpu else ""
    if any(len(branch.stages) > 1 for branch in branches):
        why = why or "its model runs in parts, which wait for each other"
    if stage.batch is not None and len(branches) > 1:
        why = why or "frames of its other batches wait for those that would be lost; replicas: 1 has no others"
    if why:
        what, where = f"on_error: {stage.on_error} cannot be here", f"stages.{name}.on_error"
        raise ConfigError(what, why=why, where=where, fix="have a service manager start edgert again instead")
