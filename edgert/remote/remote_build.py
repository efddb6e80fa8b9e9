"""Build of a pipeline or bundle whose engines a connected board compiles."""

import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.bundle.bundle import open_bundle, sign_bundle
from edgert.compiler.build_pipeline import Built, build
from edgert.compiler.build_target import engines_of
from edgert.compiler.finish import Waiting
from edgert.config import PipelineFile
from edgert.remote.board_job import STRICT
from edgert.remote.link import Link
from edgert.remote.probe import RemoteBoard, check_space, check_target, probe_board, pycuda_note, remote_target
from edgert.remote.remote_job import Retry, Transfer, Watch, add_engines, is_abandoned, result_member
from edgert.reporter import OnProgress, Progress, reporter_of
from edgert.steps import Stopped


@dataclass(frozen=True, slots=True)
class RemoteBuilt(Built):
    """The result of a remote build: the board, and by model the engines that run there now or cannot run yet."""

    remote_board: RemoteBoard
    engines: Mapping[str, str]
    waiting: Mapping[str, Waiting]


def build_remote(
    source: PipelineFile | Path,
    output: Path,
    address: str,
    *,
    program: str | None = None,
    board: str | None = None,
    mode: str | None = None,
    tensorrt: str | None = None,
    strict: bool = False,
    key: Path | None = None,
    signers: Path | None = None,
    on_progress: OnProgress | None = None,
) -> RemoteBuilt:
    """Build a bundle with engines that a board compiles, which ssh reaches.

    Blocks until done. The board goes on after a lost connection, which is retried. Sent files and finished steps are
    cached here and there.

    Args:
        source: pipeline, which is built here first; or path of a bundle.
        output: path of the bundle to write, atomically.
        address: address of the board for ssh.
        program: path of ``edgert`` on the board; see :func:`edgert.remote.probe.probe_board`.
        board: board to build for; default: the connected one.
        mode: power mode to build for; default: that of the connected board.
        tensorrt: TensorRT release to build for; default: that of the connected board.
        strict: as for :func:`edgert.compiler.finish.finish`, on the board.
        key: private key that signs the bundle that is sent, and the one that is written; see :func:`sign_bundle`.
        signers: allowed_signers file for a source that is a bundle, and for ``key``; None: anyone may sign.
        on_progress: function called for every event here and there; an error it raises ends the build on both.

    Raises:
        LinkError: the board cannot be reached, refuses the login, or does not answer again.
        ConfigError: the target is not the connected board.
        DeviceError: edgert or TensorRT is missing there, or has another version.
        ArtifactError: a disk is full, a transfer is damaged, a signature is missing or wrong, or the board sent more
            than engines.
        EdgertError: as :func:`edgert.compiler.build`, here or there.
    """
    began = time.perf_counter()
    report = reporter_of(on_progress)
    remote = _RemoteSteps(address, Retry(report, report.stop), strict)
    with report.ends(), tempfile.TemporaryDirectory(prefix="edgert-") as name:
        link, found = remote.probe(program)
        bundle = source if isinstance(source, Path) else Path(name) / "bundle.edgert"
        if isinstance(source, PipelineFile):
            target = remote_target(source, found, board, mode, tensorrt)
            engines = engines_of(target, list(source.config.models.values()), source.config.engines)
            remote.check(found, target.name, engines, target.tensorrt)
            mode, tensorrt = target.mode or None, target.tensorrt or None
            build(source, bundle, board=target.requested, mode=mode, tensorrt=tensorrt, on_progress=report)
        else:
            with open_bundle(source) as given:
                if key is None or given.signature:
                    given.signer(signers)
        if key is not None:
            bundle = _signed_copy(bundle, Path(name) / "signed.edgert", key, signers)
        with open_bundle(bundle) as made:
            known = made.manifest
            if not isinstance(source, PipelineFile):
                remote.check(found, known.board, known.engines, known.tensorrt)
            check_space(found, address, bundle.stat().st_size)
            addition = Path(name) / "addition.zip"
            result = remote.compile(link, bundle, addition)
            manifest, written = add_engines(made, addition, output)
            if key is not None:
                sign_bundle(output, key, signers)
    size_bytes, seconds = output.stat().st_size, time.perf_counter() - began
    waiting = {model: Waiting(**one) for model, one in result.get("waiting", {}).items()}
    return RemoteBuilt(output, manifest, written, size_bytes, seconds, found, result.get("engines", {}), waiting)


def _signed_copy(bundle: Path, copy: Path, key: Path, signers: Path | None) -> Path:
    """Return a copy of a bundle with our signature, which a board with allowed signers requires."""
    shutil.copyfile(bundle, copy)
    sign_bundle(copy, key, signers)
    return copy


@dataclass(frozen=True)
class _RemoteSteps:
    """The steps of a build that run on the board."""

    address: str
    retry: Retry
    strict: bool = False

    def probe(self, program: str | None) -> tuple[Link, RemoteBoard]:
        """Probe the board, without retries."""
        began = time.perf_counter()
        self.retry.on_progress(Progress("board", "", "started"))
        link, found = probe_board(self.address, program, self._poll)
        self.retry.on_progress(Progress("board", "", "done", time.perf_counter() - began, str(found)))
        return link, found

    def check(self, found: RemoteBoard, board: str, engines: Collection[str], tensorrt: str) -> None:
        """Check that the bundle fits the board, as :func:`.check_target`; report missing parts as an event."""
        check_target(found, self.address, board, engines, tensorrt)
        if lacking := pycuda_note(found, self.address, engines):
            self.retry.on_progress(Progress("check", "", "skipped", detail=lacking))

    def compile(self, link: Link, bundle: Path, addition: Path) -> Mapping[str, Any]:
        """Send a bundle, compile it there, and fetch the new members into a file; return the compiler's last line."""
        digest = Transfer(link, self.retry, self._poll).send(bundle)
        while True:
            watch, alike = self._start(link, f"{digest}.{uuid.uuid4().hex[:12]}")
            end = watch.to_end()
            if not watch.joined or (alike and not is_abandoned(end)):
                break  # else we had joined a run that was canceled or differs in strictness: start ours next
        result = result_member(end, watch.error, self.address)
        Transfer(link, self.retry, self._poll).fetch(watch.run, result, addition)
        return watch.summary

    def _start(self, link: Link, run: str) -> tuple[Watch, bool]:
        """Start or join a run, and return it, and whether it is as strict as this build."""
        words = ("job", "start", run, *([STRICT] if self.strict else []))
        started = self.retry.run(lambda: link.ask(*words, poll=self._poll), lambda: 0)
        alike = started["strict"] == self.strict
        if started["joined"]:
            then = "its result is used" if alike else f"ours, {'' if self.strict else 'not '}{STRICT}, comes after it"
            detail = f"a build of the same bundle is running there: {then}"
            self.retry.on_progress(Progress("link", "", "note", detail=detail))
        return Watch(link, started["run"], started["joined"], self.retry), alike

    def _poll(self) -> None:
        if self.retry.stop.is_set():
            raise Stopped("the build was stopped", where=self.address, fix="run it again: finished steps are cached")
