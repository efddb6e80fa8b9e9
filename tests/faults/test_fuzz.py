"""Damaged inputs of every kind in small numbers, and those that failed once: refused by name or taken.

``scripts/fuzz`` runs as many as there is time for, each in a process with limits.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.bundle.bundle import open_bundle
from edgert.bundle.manifest import NAME
from edgert.errors import ArtifactError
from tests.faults.fuzz import seeds
from tests.faults.fuzz.formats import FORMATS, case, command, packed, stop_server
from tests.faults.fuzz.sitting import CORPUS, fuzz

CASES = {"bundle": 1, "container": 4, "onnx": 2, "board": 2, "yaml": 2}
OFTEN = 8  # of formats that are read in milliseconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, made = Path.cwd(), tmp_path_factory.mktemp("fuzz")
    os.chdir(made)
    seeds.around()
    yield made
    os.chdir(before)
    stop_server()


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_inputs_are_refused_by_name_or_taken(name: str, folder: Path) -> None:
    data = FORMATS[name].made()
    assert FORMATS[name].tried(data[0]), "the seed itself is refused"
    for number in range(CASES.get(name, OFTEN)):
        FORMATS[name].tried(case(name, data, 1, number))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:40]}")
def test_what_failed_once_is_refused_by_name_or_taken(path: Path, folder: Path) -> None:
    FORMATS[path.parent.name].tried(path.read_bytes())


def test_a_case_is_the_same_wherever_it_is_made() -> None:
    data = (seeds.summary(),)
    assert [case("summary", data, 3, at) for at in range(9)] == [case("summary", data, 3, at) for at in range(9)]
    assert case("summary", data, 3, 1) != case("summary", data, 4, 1)


def test_a_worker_reports_failures_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(json.dumps({"ok": True, "result": {"stats": {}}}).encode())
    result = fuzz("state", 0, 60.0, files=[tmp_path / "one"])
    assert (result.cases, result.taken, result.failed) == (1, 1, {})


@pytest.fixture(scope="module")
def bundle(folder: Path) -> dict[str, bytes]:
    return seeds.members(seeds.bundle())


def edited(bundle: dict[str, bytes], member: str, content: object) -> Path:
    """A bundle with another member, and every digest made anew."""
    members = {name: data for name, data in bundle.items() if name != NAME}
    manifest = json.loads(bundle[NAME])
    if member == NAME:
        manifest["models"]["m"].update(content)
    else:
        members[f"models/m/{member}"] = json.dumps(content).encode()
    Path("edited.edgert").write_bytes(packed(members, manifest))
    return Path("edited.edgert")


ENGINE = {"share": 1.0, "accelerators": ["gpu"], "nodes": {"conv": "gpu"}}
FORM = {"relative_error": 0.1, "tolerance": 1.0}


@pytest.mark.parametrize(
    ("member", "content", "why"),
    [
        ("quality.json", [], "Input should be an object"),
        ("quality.json", {}, "forms: Field required"),
        ("quality.json", {"forms": {"float": 3}}, "forms.float"),
        ("quality.json", {"forms": {"float": {**FORM, "relative_error": "x"}}}, "forms.float.relative_error"),
        ("quality.json", {"forms": {"float": {**FORM, "summary": [1]}}}, "forms.float.summary.0"),
        ("placement.json", {"engines": {}}, "engines: Input should be a valid"),
        ("placement.json", {"engines": [{**ENGINE, "share": -1}]}, "engines.0.share"),
        ("placement.json", {"engines": [{**ENGINE, "accelerators": [None]}]}, "engines.0.accelerators.0"),
        ("placement.json", {"engines": [{**ENGINE, "nodes": {"conv": 1}}]}, "engines.0.nodes.conv"),
        ("placement.json", {"engines": [], "spans": {"x": [1, 2]}}, "spans.x"),
        ("placement.json", {"engines": [], "spans": {"x": {"least": [1], "most": "y", "more": 1}}}, "spans.x.usual"),
        ("fp16_nodes.json", {"nodes": "conv"}, "nodes: Input should be a valid"),
        (NAME, {"files": {}}, "names no quality of model 'm'"),
        (NAME, {"forms": {}}, "names no float of model 'm'"),
    ],
)
def test_members_that_hold_something_else(
    member: str, content: object, why: str, folder: Path, bundle: dict[str, bytes]
) -> None:
    with pytest.raises(ArtifactError) as caught:
        open_bundle(edited(bundle, member, content))
    assert why in caught.value.why
    assert "edited.edgert" in str(caught.value)


def test_a_bundle_without_a_model_that_its_pipeline_names(folder: Path, bundle: dict[str, bytes]) -> None:
    manifest = json.loads(bundle[NAME])
    manifest["models"] = {"other": manifest["models"]["m"]}
    Path("other.edgert").write_bytes(packed({name: data for name, data in bundle.items() if name != NAME}, manifest))
    for verb in (
        "build other.edgert -o out/b.edgert",
        "run other.edgert --duration 1",
        "export other.edgert --format onnx -o out/o",
    ):
        with pytest.raises(ArtifactError, match="the bundle has no model 'm'"):
            command().main(verb.split(), "edgert")
