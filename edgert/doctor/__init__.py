"""What is on this machine, what is missing, and how to get it: everything ``edgert doctor`` prints, as plain data."""

from edgert.doctor.examine import examine
from edgert.doctor.fact import facts
from edgert.doctor.finding import Finding, State

__all__ = ["Finding", "State", "examine", "facts"]
