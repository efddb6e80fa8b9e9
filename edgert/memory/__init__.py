"""Host memory of frames and tensors: pools, leases, and counters of copies and allocations."""

from edgert.memory.buffer import (
    ALIGN_BYTES,
    TYPICAL_BUFFERS,
    Counter,
    Counts,
    EndedLease,
    Lease,
    Pool,
    Receipt,
    address_of,
    aligned_empty,
    lend,
)

__all__ = [
    "ALIGN_BYTES",
    "TYPICAL_BUFFERS",
    "Counter",
    "Counts",
    "EndedLease",
    "Lease",
    "Pool",
    "Receipt",
    "address_of",
    "aligned_empty",
    "lend",
]
