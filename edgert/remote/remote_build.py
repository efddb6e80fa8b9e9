"""Build of a pipeline or bundle whose engines a connected board compiles."""

import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgert.bundle.bundle import open_bundle, sign_bundle
from edgert.compiler.build_pipeline import Built, build
from edgert.compiler.build_target import engines_of
from edgert.compiler.finish import Waiting
from edgert.config import PipelineFile
from edgert.remote.board_job import STRICT
from edgert.remote.probe import RemoteBoard, check_space, check_target, probe_board, pycuda_note, remote_target
from edgert.remote.remote_job import BoardBuild, Retry, add_engines
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

    def poll() -> None:
        if report.stop.is_set():
            raise Stopped("the build was stopped", where=address, fix="run it again: finished steps are cached")

    def check(board: str, engines: Collection[str], tensorrt: str) -> None:
        check_target(found, address, board, engines, tensorrt)
        if lacking := pycuda_note(found, address, engines):
            report(Progress("check", "", "skipped", detail=lacking))

    with report.ends(), tempfile.TemporaryDirectory(prefix="edgert-") as name:
        report(Progress("board", "", "started"))
        link, found = probe_board(address, program, poll)
        report(Progress("board", "", "done", time.perf_counter() - began, str(found)))
        bundle = source if isinstance(source, Path) else Path(name) / "bundle.edgert"
        if isinstance(source, PipelineFile):
            target = remote_target(source, found, board, mode, tensorrt)
            engines = engines_of(target, list(source.config.models.values()), source.config.engines)
            check(target.name, engines, target.tensorrt)
            mode, tensorrt = target.mode or None, target.tensorrt or None
            build(source, bundle, board=target.requested, mode=mode, tensorrt=tensorrt, on_progress=report)
        else:
            with open_bundle(source) as given:
                if key is None or given.signature:
                    given.signer(signers)
        if key is not None:  # a board with allowed signers requires our signature
            bundle = Path(shutil.copyfile(bundle, Path(name) / "signed.edgert"))
            sign_bundle(bundle, key, signers)
        with open_bundle(bundle) as made:
            known = made.manifest
            if not isinstance(source, PipelineFile):
                check(known.board, known.engines, known.tensorrt)
            check_space(found, address, bundle.stat().st_size)
            addition = Path(name) / "addition.zip"
            words = [STRICT] if strict else []
            result = BoardBuild(link, Retry(report, report.stop), bundle, *words).run(addition)
            manifest, written = add_engines(made, addition, output)
            if key is not None:
                sign_bundle(output, key, signers)
    size_bytes, seconds = output.stat().st_size, time.perf_counter() - began
    waiting = {model: Waiting(**one) for model, one in result.get("waiting", {}).items()}
    return RemoteBuilt(output, manifest, written, size_bytes, seconds, found, result.get("engines", {}), waiting)
