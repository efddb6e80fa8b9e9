"""What is on this machine, what is missing, and how to get it: everything ``edgert doctor`` prints, as plain data."""

from edgert.diagnosis.all_probes import doctor
from edgert.diagnosis.probe import Finding, State, facts

__all__ = ["Finding", "State", "doctor", "facts"]
