"""Meaning of a stage's ``batch:``: whether its model supports it, and whether an idle model waits for a full batch."""

from collections.abc import Sequence
from pathlib import Path

from edgert.config import InferStage, PipelineConfig, flow, stages
from edgert.errors import ConfigError
from edgert.stages.source.kinds import is_live

ON_PROCESSOR = "the model runs on the processor"


def is_paced(stage: stages.StageConfig, directory: Path) -> bool:
    """Return whether a stage is a source with its own rate, such as a camera, rather than one read on demand."""
    return isinstance(stage, stages.SourceStage) and (bool(stage.realtime) or is_live(stage, directory))


def why_not_wait(config: PipelineConfig, name: str, directory: Path) -> str:
    """Return why an idle model does not wait for a full batch: which sources are live; empty if it waits."""
    live = []
    for source in sorted(flow.sources_of(config.stages)[name]):
        stage = config.stages[source]
        if is_paced(stage, directory):
            live.append(source)
    return f"{' and '.join(live)} {'is' if len(live) == 1 else 'are'} live" if live else ""


def describe_batches(most: int, reason: str) -> str:
    """Return how batches of up to ``most`` frames form; ``reason`` is that of :func:`why_not_wait`."""
    how = f"of those that came while it was busy, as {reason}" if reason else "which a free model waits for"
    return f"up to {most} frames a run, {how}"


def check_batched(outputs: Sequence[str], where: str) -> None:
    """Raise ConfigError for the first of ``outputs``, which a decoder reads and which have no batch dimension."""
    if outputs:  # they hold the results of all frames of a batch, as those behind an NMS can
        raise ConfigError(
            f"batches for a model whose output {outputs[0]!r} has no batch dimension",
            why="a frame would get the results of the other frames of its batch too",
            where=where,
            fix="leave batch out, or export the model so that every output begins with the batch",
        )


def check_batch_size(stage: InferStage, rows: int, where: str, in_bundle: bool) -> None:
    """Check that a model takes as many frames per run as its stage asks for.

    ``rows`` are the most frames in one run of the model. Raises ConfigError: the model takes fewer frames.
    """
    if stage.batch is None or stage.batch.max <= rows:
        return
    why = "its batch size is fixed"
    fix = "export the model with a batch size that is left open, or leave batch out"
    if in_bundle:
        why += " in the bundle"
        fix = "leave batch out, or run the pipeline file itself: a bundle for a board has models of one size"
    what = f"batches of {stage.batch.max} for a model that takes {rows} at a time"
    raise ConfigError(what, why=why, where=where, fix=fix)
