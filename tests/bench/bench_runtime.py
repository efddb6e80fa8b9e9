"""Bar 3: ≤ 20 µs per hop; no copies, no objects and ≤ 1 MB kept over 2,000 frames.

python tests/bench/bench_runtime.py [--json FILE]
"""

from __future__ import annotations

from collections.abc import Iterator

from report import main

from edgert.benchmark.measure import Figure
from edgert.benchmark.overhead import growth, hop


def measure() -> Iterator[Figure]:
    yield hop(rounds=15)
    yield from growth()


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
