"""Imports point down the layers, never sideways, and each vendor package has one door."""

import ast
import sys
from collections.abc import Container, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = (  # from the ground up; a part may import whatever stands in a lower row, or before it in its own
    (
        "foundation",
        "_version errors frozen units clock kinds policy quantiles limits yaml_nodes files installation "
        "text_files array_file zip_archive user_code reporter steps cluster tracing",
    ),
    ("descriptions", "custom_op config board meters"),
    ("models and memory", "graph memory budget"),
    ("engines", "backend bundle runtime placement"),
    ("stages and data", "recording stages report timeline engine dataset evaluation wiring"),
    (
        "pipelines",
        "quantization assemble swap control videos result_reader running pipeline ros_node single_model validation "
        "video_player video_runs testing",
    ),
    (
        "tools",
        "replayer tuner simulator planner compiler emulation exporter importer remote benchmark diagnosis "
        "inspect_model",
    ),
    ("face", "cli __main__ __init__"),
)
LEVEL = {part: level for level, part in enumerate(part for _, row in LAYERS for part in row.split())}
DOORS = {
    "onnx": ("edgert/graph/",),
    "google": ("edgert/graph/",),
    "onnxruntime": ("edgert/backend/ort/",),
    "av": ("edgert/stages/source/", "edgert/stages/sink/"),
    "gi": ("edgert/stages/source/gst.py", "edgert/stages/sink/stream/rtsp_server.py"),
    "yaml": (
        "edgert/yaml_nodes.py",
        "edgert/config/document.py",
        "edgert/dataset/layouts.py",
        "edgert/wiring/",
    ),
    "pydantic": ("edgert/",),
    "pydantic_core": ("edgert/config/",),
    "typer": ("edgert/cli/",),
    "rich": ("edgert/cli/",),
    "cv2": (
        "edgert/quantization/calibration/value_histogram.py",
        "edgert/dataset/",
        "edgert/evaluation/",
        "edgert/replayer/",
        "edgert/runtime/",
        "edgert/stages/",
        "edgert/wiring/",
        "edgert/benchmark/",
        "edgert/diagnosis/",
    ),
    "numpy": ("edgert/",),
    "jinja2": ("edgert/report/page.py", "edgert/exporter/fleet.py"),
    "markupsafe": ("edgert/report/", "edgert/planner/"),
    "orjson": ("edgert/runtime/json_form.py",),
    "scipy": ("edgert/placement/",),
    "openvino": ("edgert/backend/openvino.py",),
    "pycocotools": ("edgert/evaluation/coco_metric.py",),
    "trackeval": ("edgert/evaluation/track_metric.py",),
    "h11": ("edgert/stages/sink/send/webhook.py", "edgert/stages/sink/web/http_exchange.py"),
    "prometheus_client": ("edgert/stages/sink/web/prometheus.py",),
    "distributed": ("edgert/cluster.py",),
    "tensorrt": ("edgert/backend/tensorrt/",),
    "pycuda": ("edgert/memory/cuda/",),
    "PyNvVideoCodec": ("edgert/stages/source/nvdec.py",),
    "paho": ("edgert/stages/sink/send/mqtt.py",),
    "nats": ("edgert/stages/sink/send/nats.py",),
    "confluent_kafka": ("edgert/stages/sink/send/kafka.py",),
    "mcap": ("edgert/stages/ros2/bag_source.py",),
    "lz4": ("edgert/stages/ros2/bag_source.py",),
    "zstandard": ("edgert/stages/ros2/bag_source.py",),
    "rclpy": ("edgert/stages/ros2/rclpy_node.py",),
    "zenoh": ("edgert/stages/ros2/zenoh_session.py",),
    "supervision": ("edgert/runtime/supervision_form.py",),
    "nvtx": ("edgert/tracing.py",),
    "opentelemetry": ("edgert/timeline/telemetry.py",),
    "sdl2": ("edgert/stages/sink/sdl_viewer.py",),
    "aiortc": ("edgert/stages/sink/stream/webrtc_sessions.py",),
    "torch": ("edgert/importer/torch_model.py",),
    "onnxscript": ("edgert/importer/torch_model.py",),
    "torchvision": ("edgert/importer/torch_model.py",),
    "timm": ("edgert/importer/torch_model.py",),
    "tensorflow": ("edgert/importer/conversion_process.py",),
    "tf2onnx": ("edgert/importer/conversion_process.py",),
    "ai_edge_litert": ("edgert/importer/conversion_process.py",),
}
_LAZY_TEXT = """
scipy onnx onnxruntime av gi openvino pycocotools trackeval distributed tensorrt pycuda PyNvVideoCodec sdl2
aiortc paho supervision nvtx opentelemetry nats confluent_kafka torch onnxscript tensorflow tf2onnx
ai_edge_litert mcap lz4 zstandard rclpy zenoh
"""
LAZY = set(_LAZY_TEXT.split())
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("edgert/**/*.py"))


@cache
def imports(file: str, *, at_once: bool = False, for_types: bool = False) -> tuple[str, ...]:
    """Return the dotted names that a file imports.

    Args:
        file: path from the root.
        at_once: whether only imports count that run when the file is itself imported.
        for_types: whether imports for type checking count, too.
    """
    found, waiting = list[str](), [*_tree(file).body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING" and not for_types:
            waiting += node.orelse
        elif not (at_once and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            waiting += [part for part in ast.iter_child_nodes(node) if isinstance(part, _STATEMENTS)]  # type: ignore[misc]
    return tuple(found)


_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def test_imports_point_down() -> None:
    wrong = []
    for file in FILES:
        here = Path(file).parts[1].removesuffix(".py")
        inside = [f"{module}.facade" for module in imports(file) if module.split(".")[0] == "edgert"]
        parts = {module.split(".")[1] for module in inside} - {here}
        wrong += [f"{file} imports {part}" for part in parts if LEVEL.get(part, len(LEVEL)) >= LEVEL[here]]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in FILES}
    del names["edgert"]  # the facade
    found = {name: set(_nearest(imports(file, for_types=True), names)) - {name} for name, file in names.items()}
    assert set(TopologicalSorter(found).static_order()) == set(names)  # or CycleError, which names the files


def _nearest(imported: Iterable[str], files: Container[str]) -> Iterator[str]:
    """The files that dotted names are, or stand in."""
    for name in imported:
        inside = name if name in files else name.rpartition(".")[0]
        if inside in files:
            yield inside


def test_vendor_packages_are_imported_at_their_doors() -> None:
    own = {*sys.stdlib_module_names, "edgert", "dla"}
    names = {(file, module.split(".")[0]) for file in FILES for module in imports(file)}
    vendors = sorted((file, name) for file, name in names if name not in own)
    assert [(file, name) for file, name in vendors if not file.startswith(DOORS.get(name, ()))] == []


def test_heavy_packages_are_imported_when_they_are_needed() -> None:
    names = {(file, module.split(".")[0]) for file in FILES for module in imports(file, at_once=True)}
    assert [pair for pair in sorted(names) if pair[1] in LAZY] == []


def test_dla_stands_alone() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("dla/**/*.py")]
    names = {module.split(".")[0] for file in files for module in imports(file)}
    assert files and names <= {*sys.stdlib_module_names, "dla"}


def test_every_part_has_its_layer() -> None:
    assert {Path(file).parts[1].removesuffix(".py") for file in FILES} <= set(LEVEL)
