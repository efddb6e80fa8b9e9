"""Meters of a machine for power, clocks, load, heat and memory; each value is measured, modeled or unavailable.

:class:`edgert.meters.all.Meters`, which reads all of them, is not imported here, as many programs need only their own
memory.
"""

from edgert.meters.reading import Reading, measured, modeled, unavailable
from edgert.meters.usage import peak_rss_bytes, rss_bytes

__all__ = ["Reading", "measured", "modeled", "peak_rss_bytes", "rss_bytes", "unavailable"]
