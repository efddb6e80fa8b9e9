"""What NVIDIA's deep-learning accelerator (DLA) can run, and nothing else.

Standard library only; imports nothing from edgert.
"""

from dla.release import supported_by
from dla.verdict import Verdict

__all__ = ["Verdict", "supported_by"]
