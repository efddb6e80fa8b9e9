"""Event-by-event simulation of a pipeline: sources, queues, threads, accelerators, and the board's power and heat."""

from edgert.simulator.design import Design, Edge, Node, Source, Task
from edgert.simulator.hardware import Cooling, ThermalModel
from edgert.simulator.play import Governing, Platform, simulate
from edgert.simulator.statistics import Moment, Simulated, StageCount

__all__ = [
    "Cooling",
    "Design",
    "Edge",
    "Governing",
    "Moment",
    "Node",
    "Platform",
    "Simulated",
    "Source",
    "StageCount",
    "Task",
    "ThermalModel",
    "simulate",
]
