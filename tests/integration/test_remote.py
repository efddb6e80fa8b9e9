"""``edgert build --remote`` against a real sshd on loopback, with a second home and cache as the board."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle.bundle import open_bundle
from edgert.errors import ArtifactError, BuildError, DeviceError
from edgert.remote.link import LinkError
from edgert.remote.remote_build import build_remote
from edgert.reporter import Progress
from edgert.steps import Stopped
from tests.helpers import signing
from tests.helpers.board_program import ENGINE
from tests.helpers.bundles import MEMBERS
from tests.helpers.command import edgert, free_port
from tests.helpers.errors import Exactly, raises
from tests.helpers.small_pipeline import TEXT, small_pipeline
from tests.helpers.sshd import Board, board
from tests.helpers.workstation import RemoteBuild, bundle_for_any

LAST = "kernel2"
"""The last step that the board's compiler tells of before it waits."""


@pytest.fixture(name="there")
def _remote_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    made = board(tmp_path / "board", monkeypatch)
    made.compiler()
    yield made
    made.go()
    made.down()


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> Path:
    return bundle_for_any(tmp_path / "dock.edgert")


def test_engines_come_back_into_the_bundle(there: Board, bundle: Path, tmp_path: Path) -> None:
    work = RemoteBuild(there, bundle, tmp_path / "out.edgert")
    built = work.result()
    with open_bundle(tmp_path / "out.edgert") as made:
        assert made.manifest == built.manifest and built.written
        assert made.read(ENGINE).startswith(b"engine")
        assert {name: made.read(name) for name in MEMBERS} == MEMBERS
    steps = [event.step for event in work.events if event.state == "done"]
    assert steps == ["board", "send", "kernel0", "kernel1", "kernel2", "fetch"]
    assert "host" in work.details("board")[-1] and built.remote_board.name == "host"
    assert built.engines == {"parts": "the tests' own"}


def test_a_pipeline_is_built_here_and_finished_there(there: Board, tmp_path: Path) -> None:
    (there.folder / "compiler.json").unlink()  # edgert itself, its doctor included
    pipeline = small_pipeline(tmp_path / "pipeline", TEXT.replace("precision: int8", "precision: fp32"))
    words = ("build", str(pipeline), "--remote", "board", "--remote-edgert", there.program, "--json", "-")
    done = edgert(*words, cwd=tmp_path, env={"EDGERT_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    *events, last = map(json.loads, done.stdout.splitlines())
    assert last["board"] == "host" and last["engines"] == {"parts": "onnxruntime"}
    assert [event["step"] for event in events if event["state"] == "done"][-1] == "fetch"
    with open_bundle(tmp_path / "small.edgert") as made:
        assert made.manifest.engines == ["onnxruntime"]


def test_what_is_sent_and_what_comes_back_is_signed_here(there: Board, bundle: Path, tmp_path: Path) -> None:
    own, output = signing.key(tmp_path), tmp_path / "out.edgert"
    allowed = signing.signers(tmp_path, own)
    how = {"program": there.program, "signers": allowed}
    for key, words in ((None, "it is not signed"), (signing.key(tmp_path, "other"), "which is none of")):
        with pytest.raises(ArtifactError, match=words):
            build_remote(bundle, output, "board", key=key, **how)
        assert not output.exists() and not [*there.cache.rglob("*.edgert")], "nothing was sent"
    build_remote(bundle, output, "board", key=own, **how)
    with open_bundle(output) as made, open_bundle(bundle) as source:
        signer = made.signer(allowed)
        assert signer is not None and signer.identity == "alice@example.com" and ENGINE in made.manifest.members
        assert not source.signature, "the source is as it was"
    sent = next(path for path in there.cache.rglob("*") if path.is_file() and path.read_bytes()[:2] == b"PK")
    with open_bundle(sent) as there_is:
        assert there_is.signer(allowed) == signer
    build_remote(output, tmp_path / "again.edgert", "board", **how)  # it is signed, and nothing new comes back
    with open_bundle(tmp_path / "again.edgert") as again:
        assert again.signer(allowed) == signer


def test_strict_is_the_boards_to_be(there: Board, bundle: Path, tmp_path: Path) -> None:
    built = RemoteBuild(there, bundle, tmp_path / "out.edgert", strict=True).result()
    assert built.engines == {"parts": "the tests' own, strictly"} and built.waiting == {}


def change_key(there: Board) -> None:
    there.down()
    there.new_host_key()
    there.up()


def unknown_key(there: Board) -> None:
    (there.folder / "known_hosts").unlink()


def not_let_in(there: Board) -> None:
    (there.folder / "authorized_keys").write_text("")


@pytest.mark.parametrize(
    ("change", "address", "what", "fix"),
    [
        (Board.down, "board", "board refused the connection", "systemctl enable --now ssh"),
        (change_key, "board", "the host key of board has changed", "ssh-keygen -R board"),
        (unknown_key, "board", "the host key of board is not known yet", "ssh board once by hand"),
        (not_let_in, "board", "board does not let this user in", "ssh-copy-id board"),
        (None, "nobody@no-such-host.invalid", "unknown host 'no-such-host.invalid'", ""),
        (None, "ssh://user@127.0.0.1:PORT", "refused the connection", "ssh://user@host:2222"),
    ],
)
def test_a_board_that_cannot_be_reached(
    there: Board, bundle: Path, change: Any, address: str, what: str, fix: str
) -> None:
    if change:
        change(there)
    with pytest.raises(LinkError) as caught:
        build_remote(bundle, bundle.with_name("out.edgert"), address.replace("PORT", str(free_port())))
    assert caught.value.what.endswith(what) and fix in caught.value.fix
    assert "refused" not in what or "Connection refused" in caught.value.why
    assert not bundle.with_name("out.edgert").exists()
    assert (there.folder / "known_hosts").exists() == (change is not unknown_key)


def test_a_board_without_edgert(there: Board, bundle: Path) -> None:
    with pytest.raises(DeviceError, match="edgert is not installed on board") as caught:
        build_remote(bundle, bundle, "board", program="~/no/edgert")
    assert caught.value.why.startswith("'no/edgert' cannot be run there")
    assert "scripts/setup-jetson" in caught.value.fix and "--remote-edgert edgert/.venv/bin/edgert" in caught.value.fix


@pytest.mark.slow
def test_a_board_with_another_edgert(there: Board, bundle: Path) -> None:
    (there.folder / "doctor.json").write_text('{"edgert": "0.0.1"}')
    with pytest.raises(DeviceError, match=r"board has edgert 0\.0\.1, this is edgert"):
        build_remote(bundle, bundle, "board", program=there.program)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["send", "fetch"])
def test_a_transfer_that_is_cut_goes_on(there: Board, tmp_path: Path, step: str) -> None:
    there.compiler(engine_bytes=8 << 20)
    bundle = bundle_for_any(tmp_path / "large.edgert", {"large.bin": os.urandom(8 << 20)})
    cuts: list[int] = []

    def cut(event: Progress) -> None:
        if (event.step, event.state) == (step, "progress") and not cuts:
            cuts.append(there.cut())

    work = RemoteBuild(there, bundle, tmp_path / "out.edgert", on_progress=cut)
    work.result()
    assert cuts == [1] and len(work.details("link")) == 1
    (arrived,) = there.cache.glob("remote/*/bundle.edgert")
    assert arrived.read_bytes() == bundle.read_bytes()
    with open_bundle(tmp_path / "out.edgert") as made:
        assert len(made.read(ENGINE)) == 8 << 20


@pytest.mark.slow
def test_a_killed_ssh_loses_nothing(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(waits=True)
    work = begun(there, bundle, tmp_path / "out.edgert")
    assert there.cut() == 1
    work.wait_for("link")
    there.go()
    work.result()
    assert there.compiled == 1
    assert "again in 0.5 s" in work.details("link")[0]
    assert len(work.details(LAST)) == 1  # events that are known are not told again


@pytest.mark.slow
def test_a_board_that_is_away_for_a_while(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(waits=True)
    work = begun(there, bundle, tmp_path / "out.edgert")
    there.down()
    there.cut()
    work.wait_for("link", 3)
    there.go()
    there.up()
    work.result()
    assert there.compiled == 1
    assert any("refused the connection" in text for text in work.details("link"))


def begun(there: Board, bundle: Path, out: Path, **options: bool) -> RemoteBuild:
    work = RemoteBuild(there, bundle, out, **options)
    work.wait_for(LAST)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_two_builds_of_one_bundle_compile_once(there: Board, bundle: Path, tmp_path: Path, strict: bool) -> None:
    there.compiler(waits=True)
    first = begun(there, bundle, tmp_path / "first.edgert")
    second = RemoteBuild(there, bundle, tmp_path / "second.edgert", strict=strict)
    second.wait_for("link")
    assert second.details("link") == ["another build of this bundle runs there; this one comes after it"]
    assert second.details("send")[-1] == "the board has it already"
    there.go()
    assert first.result().manifest == second.result().manifest
    assert first.result().engines == {"parts": "the tests' own"}
    own = "the tests' own, strictly" if strict else "the tests' own"
    assert second.result().engines == {"parts": own} and there.compiled == 1 + strict


@pytest.mark.slow
def test_ctrl_c_ends_the_job_on_the_board(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(waits=True)
    work = begun(there, bundle, tmp_path / "out.edgert")
    work.stop()
    with pytest.raises(Stopped, match="the build was stopped"):
        work.result()
    assert not is_running(there)
    assert not (tmp_path / "out.edgert").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_who_is_stopped_leaves_the_other_build_alone(there: Board, bundle: Path, tmp_path: Path, stopped: int) -> None:
    there.compiler(waits=True)
    builds = [begun(there, bundle, tmp_path / "first.edgert"), RemoteBuild(there, bundle, tmp_path / "second.edgert")]
    builds[1].wait_for("link")
    builds[stopped].stop()
    with pytest.raises(Stopped):
        builds[stopped].result()
    there.go()
    builds[1 - stopped].result()
    assert there.compiled == 2 - stopped


@pytest.mark.slow
def test_a_job_that_was_killed_is_told_and_taken_over(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(waits=True)
    work = begun(there, bundle, tmp_path / "out.edgert")
    for pid in map(int, (there.folder / "compiled").read_text().split()):
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    with raises(BuildError, "the build on board was interrupted", why="killed, or the board restarted"):
        work.result()
    there.go()
    RemoteBuild(there, bundle, tmp_path / "out.edgert").result()
    assert there.compiled == 2


@pytest.mark.slow
def test_errors_of_the_compiler_arrive_as_they_were(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(ends="error")
    with pytest.raises(BuildError, match="node 'Conv_7' cannot be compiled") as caught:
        RemoteBuild(there, bundle, tmp_path / "out.edgert").result()
    assert (caught.value.why, caught.value.where, caught.value.fix) == ("no kernel", "board: parts", "use another")


@pytest.mark.slow
def test_a_crash_is_told_with_the_end_of_the_log(there: Board, bundle: Path, tmp_path: Path) -> None:
    there.compiler(ends="crash")
    with raises(BuildError, r"edgert crashed \(SIGSEGV\) on board", why=Exactly("the last words")):
        RemoteBuild(there, bundle, tmp_path / "out.edgert").result()


@pytest.mark.slow
def test_a_full_disk(there: Board, tmp_path: Path) -> None:
    bundle = bundle_for_any(tmp_path / "large.edgert", {"large.bin": bytes(2 << 20)})
    with raises(ArtifactError, "the disk of the board is full", fix="EDGERT_CACHE") as caught:
        RemoteBuild(there, bundle, tmp_path / "out.edgert", program=on_small_disk(there)).result()
    assert caught.value.where.startswith("board: ") and "No space left on device" in caught.value.why


def on_small_disk(there: Board) -> str:
    """The board's program with a cache on a disk of 1 MiB, of its own; skips the test where that cannot be had."""
    try_out = ["unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(there.folder / "bin")]
    if shutil.which("unshare") is None or subprocess.run(try_out, check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody but root mount a small disk (user namespaces)")
    there.cache.mkdir(exist_ok=True)
    (there.folder / "doctor.json").write_text('{"free_bytes": 1000000000000}')  # it was free when it was asked
    program = there.folder / "small"
    mount = f"mount -t tmpfs -o size=1m none {there.cache}"
    program.write_text(f'#!/bin/sh\nexec unshare -Urm sh -c \'{mount} && exec {there.program} "$@"\' sh "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
def test_a_bundle_goes_on_from_where_it_broke_off(there: Board, tmp_path: Path) -> None:
    bundle = bundle_for_any(tmp_path / "large.edgert", {"large.bin": os.urandom(8 << 20)})
    whole = bundle.read_bytes()
    RemoteBuild(there, bundle, tmp_path / "out.edgert").result()
    (arrived,) = there.cache.glob("remote/*/bundle.edgert")
    assert arrived.read_bytes() == whole
    arrived.rename(arrived.with_suffix(".part"))
    os.truncate(arrived.with_suffix(".part"), len(whole) - 1000)
    work = RemoteBuild(there, bundle, tmp_path / "out.edgert")
    work.result()
    sent = [event.done for event in work.events if event.step == "send" and event.state == "progress"]
    assert sent == [len(whole)]  # one piece: the rest
    assert arrived.read_bytes() == whole


def is_running(there: Board) -> bool:
    """Whether a compiler of the board is still there, a moment later."""
    pids = [int(line) for line in (there.folder / "compiled").read_text().split()]
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return True
        time.sleep(0.05)
    return False
