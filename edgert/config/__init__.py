"""The pipeline file: YAML to frozen records, with errors that name the line. Pure; touches no hardware."""

from edgert.config.fields import OutputPath, Section
from edgert.config.model_section import (
    AccuracyConfig,
    CalibrateConfig,
    ClassifyTask,
    DetectTask,
    EmbedTask,
    InputConfig,
    KeypointsTask,
    ModelConfig,
    PythonTask,
    SegmentTask,
    TaskConfig,
)
from edgert.config.pipeline_file import PipelineConfig, PipelineFile, PipelineSource, json_schema, load_pipeline
from edgert.config.stages import (
    CropConfig,
    CropStage,
    DrawStage,
    InferStage,
    PackageStage,
    SinkStage,
    SourceStage,
    StageConfig,
    TrackStage,
)

__all__ = [
    "AccuracyConfig",
    "CalibrateConfig",
    "ClassifyTask",
    "CropConfig",
    "CropStage",
    "DetectTask",
    "DrawStage",
    "EmbedTask",
    "InferStage",
    "InputConfig",
    "KeypointsTask",
    "ModelConfig",
    "OutputPath",
    "PackageStage",
    "PipelineConfig",
    "PipelineFile",
    "PipelineSource",
    "PythonTask",
    "Section",
    "SegmentTask",
    "SinkStage",
    "SourceStage",
    "StageConfig",
    "TaskConfig",
    "TrackStage",
    "json_schema",
    "load_pipeline",
]
