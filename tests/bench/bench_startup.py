"""Bar 4: first result ≤ 2 s, import ≤ 0.3 s, ≤ 150 MB before a model, ≤ 30 packages and ≤ 480 MB installed.

python tests/bench/bench_startup.py [--json FILE]
"""

from collections.abc import Iterator
from pathlib import Path

from report import main

from edgert.benchmark.measure import Figure
from edgert.benchmark.suite import startup

HELLO = Path(__file__).parents[2] / "pipelines" / "hello.yaml"


def measure() -> Iterator[Figure]:
    yield from startup(HELLO, rounds=9)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], measure)
