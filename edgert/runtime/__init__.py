"""Frames, the records made about them, and the threads they pass through. See DESIGN.md beside this file."""

from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.frame import Color, Frame, PixelFormat
from edgert.runtime.metrics import LatencyHistogram, Percentiles
from edgert.runtime.node import Node
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
from edgert.runtime.stage import Batching, Source, SourceStats, Stage
from edgert.runtime.summary import StageSummary, Summary, summarize
from edgert.runtime.throttle import SourceRateLimiter

__all__ = [
    "AnomalyMap",
    "Attributes",
    "Batching",
    "Channel",
    "Classification",
    "Color",
    "Crops",
    "DepthMap",
    "Detection",
    "Detections",
    "Embedding",
    "Frame",
    "Inlet",
    "Keypoints",
    "LatencyHistogram",
    "Node",
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
    "Text",
    "summarize",
]
