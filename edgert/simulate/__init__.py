"""A pipeline played event by event: its sources, queues and threads, the accelerators, the board's power and heat."""

from edgert.simulate.core import CoreStep
from edgert.simulate.design import Design, Edge, Node, Source, Task
from edgert.simulate.outcome import Moment, Simulated, StageCount
from edgert.simulate.plant import Cooling, Plant
from edgert.simulate.play import Governing, Rig, simulate

__all__ = [
    "Cooling",
    "CoreStep",
    "Design",
    "Edge",
    "Governing",
    "Moment",
    "Node",
    "Plant",
    "Rig",
    "Simulated",
    "Source",
    "StageCount",
    "Task",
    "simulate",
]
