"""Assembly of a pipeline from its file: the one place that imports config, engines, stages and runtime together."""

from edgert.assemble.default_engines import with_default_engines
from edgert.assemble.graph import FILE_QUEUE, HERE, Assembly, Callback, Environment, assemble
from edgert.assemble.models import MOST_REPLICAS, STAGE_QUEUE, replicas_of, threads_of

__all__ = [
    "FILE_QUEUE",
    "HERE",
    "MOST_REPLICAS",
    "STAGE_QUEUE",
    "Assembly",
    "Callback",
    "Environment",
    "assemble",
    "replicas_of",
    "threads_of",
    "with_default_engines",
]
