"""What it takes to make the frozen records that come with every frame, as edgert makes them and as dataclasses do.

python tests/bench/bench_frozen.py [--json FILE]
"""

import statistics
import sys
import timeit
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from report import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.runtime import Frame, Result
from edgert.stages.source.timeline import Image

ROUNDS, COUNT = 15, 20_000


def measure() -> Iterator[Figure]:
    for kind in (Frame, Image, Result):
        plain = as_dataclasses_do(kind)
        pairs = [(made_us(plain), made_us(kind)) for _ in range(ROUNDS)]
        before, after = (statistics.median(one) for one in zip(*pairs, strict=True))
        detail = {"fields": len(fields(kind)), "as dataclasses do, us": before, "us": after}
        yield Figure(f"{kind.__name__}: time to make one, of a dataclass's", after / before, "x", 1.0, n=ROUNDS,
                     detail=detail)  # fmt: skip


def as_dataclasses_do(kind: type[Any]) -> type[Any]:
    """The same record with the ``__init__`` of any frozen dataclass."""
    body = {"__annotations__": {one.name: Any for one in fields(kind)}}
    return dataclass(frozen=True, slots=True, eq=False)(type(kind.__name__, (), body))


def made_us(kind: type[Any]) -> float:
    values = [None] * len(fields(kind))
    return 1e6 * timeit.timeit(lambda: kind(*values), number=COUNT) / COUNT


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
