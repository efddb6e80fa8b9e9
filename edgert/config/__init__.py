"""The pipeline file: YAML to frozen records, with errors that name the line. Pure; touches no hardware."""

from edgert.config.document import Document
from edgert.config.model import (
    AccuracyConfig,
    CalibrateConfig,
    ClassifyTask,
    DetectTask,
    EmbedTask,
    InputConfig,
    KeypointsTask,
    ModelConfig,
    PythonTask,
    QuantizeConfig,
    SegmentTask,
    TaskConfig,
)
from edgert.config.pipeline import BudgetConfig, PipelineConfig, PipelineFile, json_schema, load_pipeline
from edgert.config.stage import (
    CropConfig,
    CropStage,
    DrawStage,
    InferStage,
    PythonStage,
    SinkStage,
    SourceStage,
    StageConfig,
    TrackStage,
)

__all__ = [
    "AccuracyConfig",
    "BudgetConfig",
    "CalibrateConfig",
    "ClassifyTask",
    "CropConfig",
    "CropStage",
    "DetectTask",
    "Document",
    "DrawStage",
    "EmbedTask",
    "InferStage",
    "InputConfig",
    "KeypointsTask",
    "ModelConfig",
    "PipelineConfig",
    "PipelineFile",
    "PythonStage",
    "PythonTask",
    "QuantizeConfig",
    "SegmentTask",
    "SinkStage",
    "SourceStage",
    "StageConfig",
    "TaskConfig",
    "TrackStage",
    "json_schema",
    "load_pipeline",
]
