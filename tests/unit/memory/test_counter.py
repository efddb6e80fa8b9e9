"""What is counted, and what one counter takes from another."""

from __future__ import annotations

from edgert.memory import Counter, Counts


def test_counts_copies_allocations_and_escapes() -> None:
    counter = Counter()
    counter.copied(10)
    counter.copied(5)
    counter.allocated()
    counter.escaped()
    assert counter.read() == Counts(copies=2, bytes_copied=15, allocations=1, escaped=1)


def test_takes_from_another_only_what_it_counts_from_now_on() -> None:
    counter, gpu = Counter(), Counter()
    gpu.copied(1000)
    counter.copied(1)
    counter.include(gpu)
    assert counter.read() == Counts(1, 1)
    gpu.copied(20)
    gpu.allocated()
    assert counter.read() == Counts(2, 21, 1) and gpu.read() == Counts(2, 1020, 1)
