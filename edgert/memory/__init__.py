"""Bytes and their owners: pools, leases, and the counter that proves nothing was copied."""

from edgert.memory.buffer import ALIGN_BYTES, SETTLED, Lease, Pool, Supply, aligned_empty, lend
from edgert.memory.counter import Counter, Counts

__all__ = ["ALIGN_BYTES", "SETTLED", "Counter", "Counts", "Lease", "Pool", "Supply", "aligned_empty", "lend"]
