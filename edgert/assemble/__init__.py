"""Assembly of a pipeline from its file: the one place that imports config, engines, stages and runtime together."""

from edgert.assemble.default_engines import with_default_engines
from edgert.assemble.graph import HERE, Assembly, Callback, Environment, assemble
from edgert.assemble.models import MOST_REPLICAS, replicas_of, threads_of

__all__ = [
    "HERE",
    "MOST_REPLICAS",
    "Assembly",
    "Callback",
    "Environment",
    "assemble",
    "replicas_of",
    "threads_of",
    "with_default_engines",
]
