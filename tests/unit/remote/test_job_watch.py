"""Retry with connections, ends of jobs, and what is added to a bundle."""

import threading
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import open_bundle, save_bundle
from edgert.bundle.manifest import CompiledEntry
from edgert.errors import ArtifactError, BuildError
from edgert.remote.link import LinkError, link_error
from edgert.remote.remote_build import Retry, add_engines, pack_addition, result_member
from edgert.reporter import Progress
from edgert.steps import Stopped
from edgert.zip_archive import Member, member_of
from tests.helpers.bundles import MEMBERS, bundle, manifest_of
from tests.helpers.errors import Exactly, raises

LOST = "ssh: connect to host jetson port 22: Connection refused"


class Pauses(threading.Event):
    """A stop that nobody waits for; it counts how long they would have."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0.0)
        return False


def test_pauses_double_up_to_a_limit_and_an_end() -> None:
    events: list[Progress] = []
    stop = Pauses()

    def attempt() -> None:
        raise link_error("jetson", LOST)

    with pytest.raises(LinkError, match="jetson refused the connection"):
        Retry(events.append, stop, first_s=1, most_s=4, limit_s=10).run(attempt, lambda: 0)
    assert stop.waited_s == [1, 2, 4, 4]
    assert [event.detail.rpartition("; ")[2] for event in events] == [f"again in {s} s" for s in (1, 2, 4, 4)]


def test_pauses_begin_anew_once_something_came_through() -> None:
    stop, states = Pauses(), iter([0, 0, 0, 5, 5, 5, 5, 5])
    tries = iter(range(5))

    def attempt() -> str:
        if next(tries) < 4:
            raise link_error("jetson", LOST)
        return "done"

    assert Retry(lambda event: None, stop, first_s=1).run(attempt, lambda: next(states)) == "done"
    assert stop.waited_s == [1, 2, 1, 2]


@pytest.mark.parametrize("said", ["Host key verification failed.", "Permission denied (publickey)."])
def test_what_will_not_mend_itself_is_not_waited_for(said: str) -> None:
    stop = Pauses()

    def attempt() -> None:
        raise link_error("jetson", said)

    with pytest.raises(LinkError):
        Retry(lambda event: None, stop).run(attempt, lambda: 0)
    assert stop.waited_s == []


def end(**changes: Any) -> dict[str, Any]:
    return {"code": 1, "canceled": False, "log": "the log", "free_bytes": 2**30, **changes}


def test_what_was_made_is_fetched() -> None:
    assert result_member(end(code=0, result={"size_bytes": 3, "sha256": "a"}), {}, "jetson") == Member(3, "a")


def test_the_compiler_s_error_is_that_of_the_build() -> None:
    error = BuildError("no kernel", why="too new", where="a.onnx", fix="use another").to_json()
    with raises(BuildError, says=Exactly("no kernel\n  why:   too new\n  where: jetson: a.onnx\n  fix:   use another")):
        result_member(end(), error, "jetson")


def test_a_result_that_could_not_be_packed_is_told() -> None:
    error = ArtifactError("cannot write", why="full").to_json()
    with raises(ArtifactError, "cannot write", where=Exactly("jetson")):
        result_member(end(code=0, error=error), {}, "jetson")


@pytest.mark.parametrize(
    ("changes", "kind", "what", "why"),
    [
        ({"code": None}, BuildError, "the build on jetson was interrupted", "the board restarted"),
        ({"code": -11}, BuildError, r"edgert crashed \(SIGSEGV\) on jetson", "the log"),
        ({"code": 70}, BuildError, "edgert failed with exit code 70 on jetson", "the log"),
        ({"code": 70, "log": ""}, BuildError, "edgert failed with exit code 70", "it wrote nothing"),
        ({"free_bytes": 100}, ArtifactError, "the disk of jetson is full", "100 bytes are free"),
        ({"canceled": True}, Stopped, "the build was stopped", ""),
    ],
)
def test_other_ends(changes: dict[str, Any], kind: type[Exception], what: str, why: str) -> None:
    with raises(kind, what, why=why, fix=True):
        result_member(end(**changes), {}, "jetson")


def finished(path: Path) -> Path:
    members = {**MEMBERS, "engines/a.plan": b"engine"}
    save_bundle(path, manifest_of(members), members)
    return path


def test_only_what_is_new_travels_back(tmp_path: Path) -> None:
    before, after = bundle(tmp_path / "a.edgert"), finished(tmp_path / "b.edgert")
    made = pack_addition(before, after, tmp_path / "new.zip")
    assert made == member_of((tmp_path / "new.zip").read_bytes())
    assert MEMBERS["models/parts/model.onnx"] not in (tmp_path / "new.zip").read_bytes()
    with open_bundle(before) as old:
        manifest, written = add_engines(old, tmp_path / "new.zip", tmp_path / "c.edgert")
    assert written and manifest == manifest_of({**MEMBERS, "engines/a.plan": b"engine"})
    assert (tmp_path / "c.edgert").read_bytes() == after.read_bytes()


def test_a_bundle_can_be_replaced_by_itself_with_engines(tmp_path: Path) -> None:
    before, after = bundle(tmp_path / "a.edgert"), finished(tmp_path / "b.edgert")
    pack_addition(before, after, tmp_path / "new.zip")
    with open_bundle(before) as old:
        add_engines(old, tmp_path / "new.zip", before)
    assert before.read_bytes() == after.read_bytes()


def test_what_belongs_to_another_bundle_is_refused(tmp_path: Path) -> None:
    before, after = bundle(tmp_path / "a.edgert"), finished(tmp_path / "b.edgert")
    pack_addition(before, after, tmp_path / "new.zip")
    other = {**MEMBERS, "pipeline.yaml": b"schema: 1\n"}
    save_bundle(tmp_path / "other.edgert", manifest_of(other), other)
    with (
        open_bundle(tmp_path / "other.edgert") as old,
        raises(ArtifactError, "the board's answer is refused", why="'pipeline.yaml'"),
    ):
        add_engines(old, tmp_path / "new.zip", tmp_path / "c.edgert")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"members": {**MEMBERS, "models/parts/model.onnx": b"another model"}}, "member 'models/parts/model.onnx'"),
        ({"sinks": {"out": "jsonl"}}, "the manifest"),
        ({"compiled": {name: CompiledEntry(facts={}, engines={}) for name in ("a", "b")}}, "engines of other boards"),
    ],
)
def test_a_board_that_changes_more_than_its_engines_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    before, output = bundle(tmp_path / "a.edgert"), tmp_path / "c.edgert"
    members = changes.pop("members", MEMBERS)
    save_bundle(tmp_path / "b.edgert", manifest_of(members, **changes), members)
    pack_addition(before, tmp_path / "b.edgert", tmp_path / "new.zip")
    with open_bundle(before) as old, pytest.raises(ArtifactError, match="the board's answer is refused") as caught:
        add_engines(old, tmp_path / "new.zip", output)
    assert why in caught.value.why and not output.exists()


def test_a_damaged_addition_is_refused(tmp_path: Path) -> None:
    before, after = bundle(tmp_path / "a.edgert"), finished(tmp_path / "b.edgert")
    pack_addition(before, after, tmp_path / "new.zip")
    content = bytearray((tmp_path / "new.zip").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "new.zip").write_bytes(content)
    with open_bundle(before) as old, pytest.raises(ArtifactError, match="is damaged"):
        add_engines(old, tmp_path / "new.zip", tmp_path / "c.edgert")
