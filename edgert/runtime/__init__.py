"""Frames, the records of their results, and the threads that process them. See DESIGN.md beside this file."""

from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.frame import Color, Frame, PixelFormat
from edgert.runtime.graph import Graph
from edgert.runtime.metrics import Percentiles
from edgert.runtime.records import (
    AnomalyMap,
    Attributes,
    Classification,
    Crops,
    DepthMap,
    Detection,
    Detections,
    Embedding,
    Keypoints,
    OutputImage,
    Record,
    Result,
    Segmentation,
    Text,
)
from edgert.runtime.runner import Runner
from edgert.runtime.stage import AsyncStage, Source, SourceStats, Stage
from edgert.runtime.summary import StageSummary, Summary, summarize
from edgert.runtime.task import Execution, Task
from edgert.runtime.throttle import SourceRateLimiter

__all__ = [
    "AnomalyMap",
    "AsyncStage",
    "Attributes",
    "Channel",
    "Classification",
    "Color",
    "Crops",
    "DepthMap",
    "Detection",
    "Detections",
    "Embedding",
    "Execution",
    "Frame",
    "Graph",
    "Inlet",
    "Keypoints",
    "OutputImage",
    "Percentiles",
    "PixelFormat",
    "Record",
    "Result",
    "Runner",
    "Segmentation",
    "Source",
    "SourceRateLimiter",
    "SourceStats",
    "Stage",
    "StageSummary",
    "Summary",
    "Task",
    "Text",
    "summarize",
]
