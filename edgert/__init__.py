"""edgert: camera, ONNX model, output, from one YAML file, on a Jetson or any other machine.

    edgert.Model("parts.onnx")("photo.jpg")                one image in, typed detections out
    edgert.Pipeline("belt.yaml").results("track")          a camera or video in, results out

Ask for each by its name, ``help(edgert.Model)``; the page with examples is docs/python.md. The names::

    run       Model, Pipeline, Results, ResultTimeout, Summary, Buffer, run_videos, VideoResult, LoadedEngine,
              load_engine
    results   Result, Frame, Detections, Detection, Keypoints, Classification, Segmentation, Embedding, Attributes,
              Text, DepthMap, OutputImage, AnomalyMap, Crops, Gallery
    file      load_pipeline, PipelineFile, PipelineConfig, ModelConfig, InputConfig
    verbs     new, check, validate, inspect, inspect_bundle, plan, simulate, calibrate, quantize, evaluate, build,
              export, replay, enroll, models, boards, find_board, doctor, from_torch, op
    options   Scenario, CalibrateOptions, QuantizeOptions, EvaluateOptions, ExportOptions, Progress
    returned  Starter, CheckReport, Validation, Inspection, DlaInspection, BundleInspection, Plan, BoardPlan,
              Simulation, RangeTable, QuantizedModel, QuantizationResult, Evaluation, Built, Exported, Enrolled,
              KnownFamily, Board, Finding, Replay, Difference
    errors    EdgertError, ConfigError, ModelError, CalibrationError, PlacementError, BuildError, ArtifactError,
              BudgetError, DeviceError, StageError

A name is imported when it is first used, so that ``import edgert`` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgert import limits
from edgert._version import __version__ as __version__

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read by `import onnxruntime`, which else reports to its maker
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(limits.IMAGE_PIXELS))  # read by `import cv2`

if TYPE_CHECKING:
    from edgert.board.record import Board as Board, boards as boards, find_board as find_board
    from edgert.compiler.build_pipeline import Built as Built, build as build
    from edgert.config import (
        InputConfig as InputConfig,
        ModelConfig as ModelConfig,
        PipelineConfig as PipelineConfig,
        PipelineFile as PipelineFile,
        load_pipeline as load_pipeline,
    )
    from edgert.custom_op import op as op
    from edgert.diagnosis import Finding as Finding, doctor as doctor
    from edgert.engine import LoadedEngine as LoadedEngine, load_engine as load_engine
    from edgert.errors import (
        ArtifactError as ArtifactError,
        BudgetError as BudgetError,
        BuildError as BuildError,
        CalibrationError as CalibrationError,
        ConfigError as ConfigError,
        DeviceError as DeviceError,
        EdgertError as EdgertError,
        ModelError as ModelError,
        PlacementError as PlacementError,
        StageError as StageError,
    )
    from edgert.evaluation.enroll import Enrolled as Enrolled, enroll as enroll
    from edgert.exporter.export import Exported as Exported, ExportOptions as ExportOptions, export as export
    from edgert.importer.conversion import from_torch as from_torch
    from edgert.inspect_model import (
        BundleInspection as BundleInspection,
        DlaInspection as DlaInspection,
        Inspection as Inspection,
        inspect as inspect,
        inspect_bundle as inspect_bundle,
    )
    from edgert.pipeline import Pipeline as Pipeline
    from edgert.planner import BoardPlan as BoardPlan, Plan as Plan, plan as plan
    from edgert.planner.simulation import Scenario as Scenario, Simulation as Simulation, simulate as simulate
    from edgert.quantization.calibration.ranges import RangeTable as RangeTable
    from edgert.quantization.evaluate import (
        EvaluateOptions as EvaluateOptions,
        Evaluation as Evaluation,
        evaluate as evaluate,
    )
    from edgert.quantization.int8_model import QuantizationResult as QuantizationResult
    from edgert.quantization.to_files import (
        CalibrateOptions as CalibrateOptions,
        QuantizedModel as QuantizedModel,
        QuantizeOptions as QuantizeOptions,
        calibrate as calibrate,
        quantize as quantize,
    )
    from edgert.replayer.expectation import Difference as Difference
    from edgert.replayer.replayed import Replay as Replay, replay as replay
    from edgert.reporter import Progress as Progress
    from edgert.result_reader import Results as Results, ResultTimeout as ResultTimeout
    from edgert.runtime import (
        AnomalyMap as AnomalyMap,
        Attributes as Attributes,
        Classification as Classification,
        Crops as Crops,
        DepthMap as DepthMap,
        Detection as Detection,
        Detections as Detections,
        Embedding as Embedding,
        Frame as Frame,
        Keypoints as Keypoints,
        OutputImage as OutputImage,
        Result as Result,
        Segmentation as Segmentation,
        Summary as Summary,
        Text as Text,
    )
    from edgert.single_model import Model as Model
    from edgert.stages.gallery import Gallery as Gallery
    from edgert.stages.source.user_memory import Buffer as Buffer
    from edgert.validation import Validation as Validation, validate as validate
    from edgert.video_player import VideoResult as VideoResult
    from edgert.video_runs import run_videos as run_videos
    from edgert.wiring.check import check as check
    from edgert.wiring.check_report import CheckReport as CheckReport
    from edgert.wiring.known import KnownFamily as KnownFamily, models as models
    from edgert.wiring.starter import Starter as Starter, new as new

_NAMES = {  # module → what is public of it; a test holds the imports above against it
    "edgert.board.record": "Board boards find_board",
    "edgert.compiler.build_pipeline": "Built build",
    "edgert.config": "InputConfig ModelConfig PipelineConfig PipelineFile load_pipeline",
    "edgert.custom_op": "op",
    "edgert.diagnosis": "Finding doctor",
    "edgert.engine": "LoadedEngine load_engine",
    "edgert.errors": "ArtifactError BudgetError BuildError CalibrationError ConfigError DeviceError EdgertError "
    "ModelError PlacementError StageError",
    "edgert.evaluation.enroll": "Enrolled enroll",
    "edgert.exporter.export": "ExportOptions Exported export",
    "edgert.importer.conversion": "from_torch",
    "edgert.inspect_model": "BundleInspection DlaInspection Inspection inspect inspect_bundle",
    "edgert.pipeline": "Pipeline",
    "edgert.planner": "BoardPlan Plan plan",
    "edgert.planner.simulation": "Scenario Simulation simulate",
    "edgert.replayer.expectation": "Difference",
    "edgert.replayer.replayed": "Replay replay",
    "edgert.reporter": "Progress",
    "edgert.quantization.calibration.ranges": "RangeTable",
    "edgert.quantization.evaluate": "EvaluateOptions Evaluation evaluate",
    "edgert.quantization.int8_model": "QuantizationResult",
    "edgert.quantization.to_files": "CalibrateOptions QuantizeOptions QuantizedModel calibrate quantize",
    "edgert.result_reader": "ResultTimeout Results",
    "edgert.runtime": "AnomalyMap Attributes Classification Crops DepthMap Detection Detections Embedding Frame "
    "Keypoints OutputImage Result Segmentation Summary Text",
    "edgert.single_model": "Model",
    "edgert.stages.gallery": "Gallery",
    "edgert.stages.source.user_memory": "Buffer",
    "edgert.validation": "Validation validate",
    "edgert.video_player": "VideoResult",
    "edgert.video_runs": "run_videos",
    "edgert.wiring.check_report": "CheckReport",
    "edgert.wiring.check": "check",
    "edgert.wiring.known": "KnownFamily models",
    "edgert.wiring.starter": "Starter new",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
# There is no __all__: with it, help(edgert) prints 6,000 lines, the help of every name one after the other.


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgert' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_HOME[name]), name))


def __dir__() -> list[str]:
    return ["__version__", *_HOME]
