"""Work that several threads do at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(work: Callable[[], object], count: int = 4) -> None:
    """Call ``work`` in ``count`` threads and wait for all of them. Raises what one of them raised."""
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(work) for _ in range(count)]:
            done.result()
