"""What a machine uses: power, clocks, load, heat and memory, each value measured, modeled or unavailable.

All of it at once: :class:`edgert.meters.all.Meters`, which a program that only wants its own memory need not
import.
"""

from edgert.meters.reading import Reading, measured, modeled, unavailable
from edgert.meters.usage import peak_rss_bytes, rss_bytes

__all__ = [
    "Reading",
    "measured",
    "modeled",
    "peak_rss_bytes",
    "rss_bytes",
    "unavailable",
]
