"""Which nodes are worked on in the thread of another, decided once, when a pipeline is assembled.

A thread of its own lets a stage work while those before it do. One that waits for a GPU does nothing meanwhile, and the
GPU goes on with the next batches whatever that thread does; so whoever takes its results, alone and with little to do,
takes them there: a hop to another thread costs the processor more than all else that is done with a result.
"""

from collections.abc import Sequence

from edgert.runtime import Node, Source
from edgert.stages.gpu.gpu_crops import Looked
from edgert.stages.gpu.infer_gpu import SLOTS, Collect
from edgert.stages.infer import InferBatch
from edgert.stages.sink.results import CallbackSink, NullSink

_HALF, _LITTLE = 0.5, 1 / 8
"""Of the time between two results: what the stage before may lose at most by doing a sink's work, too, is little."""


def share_threads(nodes: Sequence[Node]) -> None:
    """Has callbacks and ``sink: null`` be worked on in the thread that waits for a GPU, where nobody else listens; and
    where no source is live, in the one that launches, which then also waits.

    Where results go on to other threads, waiting has a thread of its own: one that is held up by a full queue, such as
    of a program that reads results after it has submitted many frames, must not keep the next from being launched.

    Sinks that write little, such as results as JSON, are worked on by the stage before them, where no source is live:
    it would wait for one that is slow anyway. Of cameras it would lose frames, as long as a disk holds it up.

    Where one camera alone comes to a model on a GPU, the thread that launches also waits, and takes results to others,
    while there is time for that until the next frame. Where its frames go nowhere else, that is the camera's own.

    Not callbacks behind batches of cameras: one that is slow gets the newest results out of a queue that drops others,
    while here it would get all of several batches, late.

    Args:
        nodes: every one after those it listens to, connected; none has started.
    """
    live = any(isinstance(node.work, Source) and node.work.live for node in nodes)
    before_looked = [node.producers[0] for node in nodes if isinstance(node.work, Looked)]
    for node in nodes:
        if len(node.producers) != 1:
            continue
        (before,) = node.producers
        if isinstance(node.work, Collect) and live and not isinstance(before.work, InferBatch):
            if len(node.carried[0]) == 1:
                node.spared = _HALF
                before.spared = _HALF if _gets_all_of_a_camera(before) else 0.0
        elif getattr(node.work, "is_brief", False) and not live and _may_be_held_up(before):
            node.spared = _LITTLE
        if isinstance(node.work, Looked) and len(before.outlets) == before_looked.count(before):
            node.runs_in = before.runs_in or before
        elif len(before.outlets) > 1:
            continue
        elif isinstance(node.work, CallbackSink | NullSink) and isinstance(before.work, Collect):
            (launcher,) = before.producers
            node.inlet.channels[0].together = True
            if not live:
                before.runs_in, before.lag, node.runs_in = launcher, SLOTS - 1, launcher
            elif isinstance(node.work, NullSink) or not isinstance(launcher.work, InferBatch):
                node.runs_in = before


def _gets_all_of_a_camera(node: Node) -> bool:
    """Whether a camera's frames come to it, and to nobody else."""
    before = node.producers[0]
    return len(node.producers) == 1 and isinstance(before.work, Source) and len(before.outlets) == 1


def _may_be_held_up(node: Node) -> bool:
    """Whether it is a stage beside which nothing stands still meanwhile, as a reader's file and a GPU would."""
    return bool(node.producers) and not isinstance(node.work, Collect)
