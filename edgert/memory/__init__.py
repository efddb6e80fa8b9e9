"""Bytes and their owners: pools, leases, and the counter that proves nothing was copied."""

from edgert.memory.buffer import ALIGN_BYTES, SETTLED, Counter, Counts, GrowingPool, Lease, Pool, aligned_empty, lend

__all__ = ["ALIGN_BYTES", "SETTLED", "Counter", "Counts", "GrowingPool", "Lease", "Pool", "aligned_empty", "lend"]
