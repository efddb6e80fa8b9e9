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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgert._version import __version__ as __version__

if TYPE_CHECKING:
    from edgert.board.record import Board as Board
    from edgert.board.record import boards as boards
    from edgert.board.record import find_board as find_board
    from edgert.compiler.build_pipeline import Built as Built
    from edgert.compiler.build_pipeline import build as build
    from edgert.config import InputConfig as InputConfig
    from edgert.config import ModelConfig as ModelConfig
    from edgert.config import PipelineConfig as PipelineConfig
    from edgert.config import PipelineFile as PipelineFile
    from edgert.config import load_pipeline as load_pipeline
    from edgert.custom_op import op as op
    from edgert.diagnosis import Finding as Finding
    from edgert.diagnosis import doctor as doctor
    from edgert.engine import LoadedEngine as LoadedEngine
    from edgert.engine import load_engine as load_engine
    from edgert.errors import ArtifactError as ArtifactError
    from edgert.errors import BudgetError as BudgetError
    from edgert.errors import BuildError as BuildError
    from edgert.errors import CalibrationError as CalibrationError
    from edgert.errors import ConfigError as ConfigError
    from edgert.errors import DeviceError as DeviceError
    from edgert.errors import EdgertError as EdgertError
    from edgert.errors import ModelError as ModelError
    from edgert.errors import PlacementError as PlacementError
    from edgert.errors import StageError as StageError
    from edgert.evaluation.enroll import Enrolled as Enrolled
    from edgert.evaluation.enroll import enroll as enroll
    from edgert.exporter.export import Exported as Exported
    from edgert.exporter.export import ExportOptions as ExportOptions
    from edgert.exporter.export import export as export
    from edgert.importer.conversion import from_torch as from_torch
    from edgert.inspect_model import BundleInspection as BundleInspection
    from edgert.inspect_model import DlaInspection as DlaInspection
    from edgert.inspect_model import Inspection as Inspection
    from edgert.inspect_model import inspect as inspect
    from edgert.inspect_model import inspect_bundle as inspect_bundle
    from edgert.pipeline import Pipeline as Pipeline
    from edgert.planner import BoardPlan as BoardPlan
    from edgert.planner import Plan as Plan
    from edgert.planner import plan as plan
    from edgert.planner.simulation import Scenario as Scenario
    from edgert.planner.simulation import Simulation as Simulation
    from edgert.planner.simulation import simulate as simulate
    from edgert.quantization.calibration.ranges import RangeTable as RangeTable
    from edgert.quantization.evaluate import EvaluateOptions as EvaluateOptions
    from edgert.quantization.evaluate import Evaluation as Evaluation
    from edgert.quantization.evaluate import evaluate as evaluate
    from edgert.quantization.int8_model import QuantizationResult as QuantizationResult
    from edgert.quantization.to_files import CalibrateOptions as CalibrateOptions
    from edgert.quantization.to_files import QuantizedModel as QuantizedModel
    from edgert.quantization.to_files import QuantizeOptions as QuantizeOptions
    from edgert.quantization.to_files import calibrate as calibrate
    from edgert.quantization.to_files import quantize as quantize
    from edgert.replayer.expectation import Difference as Difference
    from edgert.replayer.replayed import Replay as Replay
    from edgert.replayer.replayed import replay as replay
    from edgert.reporter import Progress as Progress
    from edgert.result_reader import Results as Results
    from edgert.result_reader import ResultTimeout as ResultTimeout
    from edgert.runtime import AnomalyMap as AnomalyMap
    from edgert.runtime import Attributes as Attributes
    from edgert.runtime import Classification as Classification
    from edgert.runtime import Crops as Crops
    from edgert.runtime import DepthMap as DepthMap
    from edgert.runtime import Detection as Detection
    from edgert.runtime import Detections as Detections
    from edgert.runtime import Embedding as Embedding
    from edgert.runtime import Frame as Frame
    from edgert.runtime import Keypoints as Keypoints
    from edgert.runtime import OutputImage as OutputImage
    from edgert.runtime import Result as Result
    from edgert.runtime import Segmentation as Segmentation
    from edgert.runtime import Summary as Summary
    from edgert.runtime import Text as Text
    from edgert.single_model import Model as Model
    from edgert.stages.gallery import Gallery as Gallery
    from edgert.stages.source.user_memory import Buffer as Buffer
    from edgert.validation import Validation as Validation
    from edgert.validation import validate as validate
    from edgert.video_player import VideoResult as VideoResult
    from edgert.video_runs import run_videos as run_videos
    from edgert.wiring.check import check as check
    from edgert.wiring.check_report import CheckReport as CheckReport
    from edgert.wiring.known import KnownFamily as KnownFamily
    from edgert.wiring.known import models as models
    from edgert.wiring.starter import Starter as Starter
    from edgert.wiring.starter import new as new

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
