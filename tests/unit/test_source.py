"""The source as a whole, and what the pages for contributors say of it: imports, sizes, sentences, limits, paths."""

import ast
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from edgert import limits
from scripts import structure
from tests.helpers.command import ROOT
from tests.helpers.sentences import of_page, of_python, of_text, too_long

TREE = structure.Tree(ROOT)
"""All modules, parsed once for the tests of this file."""

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
FILES = sorted(file for file in TREE.texts if file.startswith("edgert/"))


@cache
def imports(file: str, *, at_once: bool = False, for_types: bool = False) -> tuple[str, ...]:
    """Return the dotted names that a file imports.

    Args:
        file: path from the root.
        at_once: whether only imports count that run when the file is itself imported.
        for_types: whether imports for type checking count, too.
    """
    found, waiting = list[str](), [*TREE.modules[file].body]
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
    files = [file for file in TREE.texts if file.startswith("dla/")]
    names = {module.split(".")[0] for file in files for module in imports(file)}
    assert files and names <= {*sys.stdlib_module_names, "dla"}


def test_every_part_has_its_layer() -> None:
    assert {Path(file).parts[1].removesuffix(".py") for file in FILES} <= set(LEVEL)


# Words.

NO_VERB = re.compile(
    "(a|all|an|any|as|at|by|each|every|everything|for|from|had|has|have|how|if|in|it|its|more|most|no|nobody|nothing|of|on"
    "|one|since|so|some|such|that|the|their|there|these|they|this|those|to|until|what|when|where|whether|which|who|whose"
    "|why|with)"
)
"""First words of docstrings that are no verb, or that hide who does what, as in "Have it closed"."""
ENDS_IN_S = frozenset(("address", "discuss", "dismiss", "focus", "pass", "press", "process"))
TYPE = re.compile(r"\b[Aa] \{(type\(|[\w.]*(__name__|\bop|op_type|dtype)\b)")
"""Article before the name of a type, which would read "a int"."""
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("edgert/**/DESIGN.md")))


def test_pages_and_code_have_no_long_sentence() -> None:
    pages = [f"{page.relative_to(ROOT)}: {one}" for page in PAGES for one in too_long(of_page(page.read_text("utf-8")))]
    assert not pages, "\n".join(pages)
    code = [f"{file}: {one}" for file, nodes in TREE.nodes.items() for one in too_long(of_python(nodes))]
    assert not code, "\n".join(code)
    assert not [file for file, text in TREE.texts.items() if TYPE.search(text)]


def begins_with_verb(docstring: str) -> bool:
    """Return whether the first word may be a verb in the imperative."""
    first = docstring.split()[0].rstrip(".,;:")
    is_third_person = first.endswith("s") and first.lower() not in ENDS_IN_S
    return first.isalpha() and first[0].isupper() and not NO_VERB.fullmatch(first.lower()) and not is_third_person


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    wrong = []
    for file, nodes in TREE.nodes.items():
        for node in nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (text := ast.get_docstring(node)):
                continue
            is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
            if not is_property and not begins_with_verb(text):
                wrong.append(f"{file}:{node.lineno}: {text.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


def test_what_is_no_verb() -> None:
    for right in ("Return it.", "Process one.", "Stop, and wait."):
        assert begins_with_verb(right)
    for wrong in ("Of all checks together.", "Whether it is so.", "Frees it.", "``plane`` at a size.", "(N, 4) boxes."):
        assert not begins_with_verb(wrong)


def test_the_front_door_has_no_sentence_of_more_than_25_words() -> None:
    pages = [ROOT / "README.md", ROOT / "docs/index.md"]
    assert [one for page in pages for one in too_long(of_page(page.read_text("utf-8")), 25)] == []


def test_code_is_one_word_and_a_list_item_is_a_paragraph() -> None:
    assert list(of_text("Run `edgert run a.yaml --set b=c`, `d` or `e`. It ends.")) == ["Run CODE.", "It ends."]
    page = "# Title\n\nOne two\nthree.\n\n- four\n- five:\n\n```sh\nsix\n```\n\n| seven |\n\n    eight\n"
    assert list(of_page(page)) == ["Title", "One two three.", "four", "five:"]
    assert too_long([" ".join(["word"] * 31), " ".join(["word"] * 30)]) == [" ".join(["word"] * 31)]


def test_docstrings_and_errors_are_read() -> None:
    module = ast.parse(
        '"""Open it.\n\nArgs:\n    path: a file.\n    name: text::\n\n        code\n"""\n'
        'raise ConfigError(f"no {path}. Or so", fix="try" " again")\n'
    )
    found = ["Open it.", "Args:", "path: a file.", "name: text::", "no VALUE.", "Or so", "try again"]
    assert list(of_python(ast.walk(module))) == found


# Sizes.


@pytest.mark.parametrize("measure", structure.MEASURES, ids=lambda measure: measure.__name__)
def test_no_measure_is_over_its_bar(measure: Callable[[structure.Tree], structure.Measure]) -> None:
    found = measure(TREE)
    assert found.value <= found.bar, f"{found.name}: {', '.join(found.detail)}"


def test_a_name_counts_where_it_is_compared_not_where_a_node_is_written() -> None:
    tree = ast.parse(
        'Node("Add", names)\nbuilder.add("Mul", [a])\nreplace(node, op="Sub")\nnode.op in ("Relu", "Clip")'
    )
    assert set(structure._compared(tuple(ast.walk(tree)))) == {"Relu", "Clip"}


def test_sizes_and_names_are_counted(tmp_path: Path) -> None:
    for folder in ("edgert/one", "edgert/two", "dla"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text('"""A package."""\n')
    (tmp_path / "edgert/one/same.py").write_text("from os import (\n    path,\n)\n\n")
    (tmp_path / "edgert/two/same.py").write_text("import sys\n")
    tree = structure.Tree(tmp_path)
    measures = structure.lines, structure.files, structure.repeated_names, structure.import_share
    assert [measure(tree).value for measure in measures] == [8, 5, 2, 50.0]


def test_security_shows_the_table_of_the_code() -> None:
    section = (ROOT / "SECURITY.md").read_text().partition("## Limits")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {' | '.join(row)} |" for row in limits.TABLE]


def test_every_limit_stands_in_the_table_and_is_asked_somewhere() -> None:
    names = [name for name in vars(limits) if name.isupper() and name != "TABLE"]
    assert len(names) == len(limits.TABLE) + 1  # connections and viewers share a row
    code = "".join(TREE.texts.values())
    assert [name for name in names if f"limits.{name}" not in code] == []


DESIGNS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "edgert").rglob("DESIGN.md"))
CONTRIBUTORS = ("docs/architecture.md", "CONTRIBUTING.md", *DESIGNS)
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", CONTRIBUTORS)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+(?:\.py|/))`", text)
    bases = (ROOT, ROOT / "edgert", (ROOT / page).parent)
    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


def test_every_package_has_a_line() -> None:
    table = ARCHITECTURE.partition("| row |")[2].partition("\n\n")[0]
    packages = {path.parent.name for path in (ROOT / "edgert").glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}`" not in table} == set()


def test_the_rows_are_those_that_the_layer_test_holds() -> None:
    table = ARCHITECTURE.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()]
    assert [row for row in rows if row] == [name for name, _ in LAYERS]


def test_a_newcomer_reads_it_in_a_quarter_of_an_hour() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


@pytest.mark.parametrize("page", DESIGNS)
def test_every_design_note_is_linked(page: str) -> None:
    assert f"](../{page})" in ARCHITECTURE
