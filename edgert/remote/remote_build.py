"""The workstation's side of a remote build: a bundle is sent, compiled on the board, and its engines fetched."""

import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from edgert import files, units
from edgert.backend.chain import Skipped
from edgert.bundle.bundle import Bundle, open_bundle, save_bundle, sign_bundle
from edgert.bundle.manifest import NAME, Manifest, parse_manifest
from edgert.compiler.build_pipeline import Built, build
from edgert.compiler.build_target import engines_of
from edgert.config import PipelineFile
from edgert.errors import ArtifactError, BuildError, raised_as
from edgert.remote.link import CHUNK_BYTES, STRICT, Call, Link, LinkError, link_error, read_line, remote_error
from edgert.remote.probe import RemoteBoard, check_space, check_target, probe_board, pycuda_note, remote_target
from edgert.reporter import OnProgress, Progress, State, reporter_of
from edgert.steps import Stopped
from edgert.zip_archive import Member, ZipContainer, check_content, member_of, pack

_BUILD_AGAIN = "build again: finished steps are cached"


@dataclass(frozen=True, slots=True)
class RemoteBuilt(Built):
    """The result of a remote build: the board, and by model the engines that run there now or cannot run yet."""

    remote_board: RemoteBoard
    engines: Mapping[str, str]
    waiting: Mapping[str, Skipped]


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
            raise Stopped("the build was stopped", where=address, fix=_BUILD_AGAIN)

    with report.ends(), tempfile.TemporaryDirectory(prefix="edgert-") as name:
        report(Progress("board", "", "started"))
        link, found = probe_board(address, program, poll)
        report(Progress("board", "", "done", time.perf_counter() - began, str(found)))
        if isinstance(source, PipelineFile):
            target = remote_target(source, found, board, mode, tensorrt)
            engines = engines_of(target, list(source.config.models.values()), source.config.engines)
            wanted = (target.name, engines, target.tensorrt)
        else:
            with open_bundle(source) as given:
                wanted = (given.manifest.board, given.manifest.engines, given.manifest.tensorrt)
                if key is None or given.signature:
                    given.signer(signers)
        check_target(found, address, *wanted)
        if lacking := pycuda_note(found, address, wanted[1]):
            report(Progress("check", "", "skipped", detail=lacking))
        bundle = Path(name) / "bundle.edgert" if isinstance(source, PipelineFile) else source
        if isinstance(source, PipelineFile):
            mode, tensorrt = target.mode or None, target.tensorrt or None
            build(source, bundle, board=target.requested, mode=mode, tensorrt=tensorrt, on_progress=report)
        if key is not None:  # a board with allowed signers requires our signature
            bundle = Path(shutil.copyfile(bundle, Path(name) / "signed.edgert"))
            sign_bundle(bundle, key, signers)
        with open_bundle(bundle) as made:
            check_space(found, address, bundle.stat().st_size)
            addition = Path(name) / "addition.zip"
            result = BoardBuild(link, Retry(report, report.stop), bundle, strict).run(addition)
            manifest, written = add_engines(made, addition, output)
            if key is not None:
                sign_bundle(output, key, signers)
    size_bytes, seconds = output.stat().st_size, time.perf_counter() - began
    waiting = {model: Skipped(**one) for model, one in result.get("waiting", {}).items()}
    return RemoteBuilt(output, manifest, written, size_bytes, seconds, found, result.get("engines", {}), waiting)


# Retries after a lost connection, with growing pauses, for a limited time.

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """Retries of a lost connection, with pauses from ``first_s``, doubled up to ``most_s``, for ``limit_s``."""

    on_progress: OnProgress
    stop: threading.Event
    first_s: float = 0.5
    most_s: float = 30.0
    limit_s: float = 900.0

    def run(self, attempt: Callable[[], Result], state: Callable[[], object]) -> Result:
        """Call ``attempt`` until the connection is not lost, and return its result.

        After progress, shown by another ``state()``, pauses are short again. Raises LinkError for a failure that is
        permanent or lasts too long.
        """
        seen, pause_s, waited_s = state(), self.first_s, 0.0
        while True:
            try:
                return attempt()
            except LinkError as error:
                if not error.passing or self.stop.is_set() or waited_s >= self.limit_s:
                    raise
                if state() != seen:
                    seen, pause_s, waited_s = state(), self.first_s, 0.0
                self.on_progress(
                    Progress("link", "", "note", detail=f"{error.what} ({error.why}); again in {pause_s:g} s")
                )
            self.stop.wait(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, self.most_s)


_REPORT_EVERY_S = 0.1


class BoardBuild:
    """The build of a bundle on the board. What came through so far is known, so a new connection goes on from there.

    Args:
        link: connection to the board.
        retry: retries, the receiver of events, and the event that stops the build.
        bundle: path of the bundle.
        strict: as for :func:`build_remote`.
    """

    def __init__(self, link: Link, retry: Retry, bundle: Path, strict: bool) -> None:
        self._link, self._retry, self._bundle = link, retry, bundle
        self._words = [STRICT] if strict else []
        self._size_bytes = bundle.stat().st_size
        self._run = f"{files.digest_of_file(bundle)}.{uuid.uuid4().hex[:12]}"
        self._phase: Literal["send", "follow", "fetch"] = "send"
        self._at = self._sent_bytes = self._events = 0  # bytes of this phase, bytes sent, and offset of the events
        self._error: Mapping[str, Any] = {}  # that of the compiler
        self._summary: Mapping[str, Any] = {}  # the compiler's last line
        self._began_s, self._reported_s, self._is_canceled = time.perf_counter(), 0.0, False

    def run(self, addition: Path) -> Mapping[str, Any]:
        """Send the bundle, compile it there, and fetch the new members into a file; return the compiler's last line.

        Blocks until done. Raises LinkError, or an error that says how the job ended.
        """
        self._event("started")
        addition.touch()
        try:
            wanted = self._retry.run(lambda: self._connect(addition), lambda: (self._phase, self._at, self._events))
        except LinkError as error:
            if self._phase == "follow":
                error.fix += "; the job goes on there: repeat the same command, which comes after it"
            raise
        if files.digest_of_file(addition) != wanted.sha256:
            raise ArtifactError(
                "the board's result was damaged during the transfer",
                why=f"its SHA-256 is not {wanted.sha256[:16]}…",
                where=self._link.address,
                fix="build again: the board has it in its cache",
            )
        self._event("done", units.format_bytes(wanted.size_bytes))
        return self._summary

    def _connect(self, addition: Path) -> Member:
        """Do what is left of the build in one connection; return the size and digest of the result."""
        offsets = map(str, (self._size_bytes, self._events, addition.stat().st_size))
        with self._link.call("job", "build", self._run, *offsets, *self._words) as call:
            if (answer := call.line(self._poll)) is not None:
                if self._phase == "send":
                    self._send(call, answer["receive"])
                if (end := self._follow(call)) is not None:
                    wanted = result_member(end, self._error, self._link.address)
                    self._fetch(call, wanted, addition)
                    return wanted
            call.check()
        raise link_error(self._link.address, "the board sent no more")

    def _send(self, call: Call, at: int) -> None:
        with self._bundle.open("rb") as file:
            self._at = file.seek(at)
            while (chunk := file.read(CHUNK_BYTES)) and call.write(chunk):
                self._poll()
                self._sent_bytes += len(chunk)
                self._advance(len(chunk), self._size_bytes)

    def _follow(self, call: Call) -> Mapping[str, Any] | None:
        """Report the events of the job, and return its end; None for a connection that ends first."""
        while (content := call.line(self._poll)) is not None:
            if self._phase == "send":  # the board answers when it has the bundle
                if self._sent_bytes:
                    self._event("done", units.format_bytes(self._size_bytes))
                else:
                    self._event("cached", "the board has it already")
                self._phase = "follow"
            self._events = content["at"]
            if "end" in content:
                end: Mapping[str, Any] = content["end"]
                return end
            line = read_line(content.get("text", "").encode()) or {}  # lines that are not JSON are ignored
            self._error = line.get("error", self._error)
            self._summary = line if "bundle" in line else self._summary
            if (event := Progress.from_json(line)) is not None:
                self._retry.on_progress(event)
        return None

    def _fetch(self, call: Call, wanted: Member, addition: Path) -> None:
        if self._phase != "fetch":
            self._phase, self._began_s = "fetch", time.perf_counter()
            self._event("started")
        with addition.open("ab") as file:
            self._at = file.tell()
            for piece in call.raw(self._poll):
                file.write(piece)
                self._advance(len(piece), wanted.size_bytes)
                if self._at > wanted.size_bytes:  # its digest is wrong, and it may never end
                    return
        if self._at != wanted.size_bytes:
            raise link_error(self._link.address, f"{self._at} of {wanted.size_bytes} bytes came")

    def _advance(self, count: int, total: int) -> None:
        self._at += count
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self._retry.on_progress(Progress(self._phase, done=self._at, total=total))

    def _event(self, state: State, detail: str = "") -> None:
        seconds = 0.0 if state == "started" else time.perf_counter() - self._began_s
        self._retry.on_progress(Progress(self._phase, "", state, seconds, detail))

    def _poll(self) -> None:
        """Cancel the job if a stop is requested, and wait for its end; raise Stopped where no job runs."""
        if not self._retry.stop.is_set() or self._is_canceled:
            return
        if self._phase != "follow":
            raise Stopped("the build was stopped", where=self._link.address, fix=_BUILD_AGAIN)
        self._is_canceled = True
        self._link.ask("job", "cancel", self._run)


# The additions of a board to a bundle: the manifest and the new members, as an archive.
#
# Models are the largest part of a bundle and do not change, so they are not sent back.


def pack_addition(before: Path, after: Path, path: Path) -> Member:
    """Write the members that a bundle has, but its predecessor lacks, to an archive; return its size and digest."""
    with open_bundle(before) as old, open_bundle(after) as new:
        known = old.manifest.members
        content = {name: new.read(name) for name, member in new.manifest.members.items() if known.get(name) != member}
        content[NAME] = new.manifest.to_bytes()
    with raised_as(ArtifactError, f"cannot write {str(path)!r}", fix="free some space"):
        with path.open("w+b") as file:
            pack(content, file, NAME)
        return member_of(path.read_bytes())


def add_engines(before: Bundle, addition: Path, output: Path) -> tuple[Manifest, bool]:
    """Write the bundle with the additions; return its manifest, and whether it was written.

    Raises ArtifactError for an addition that is damaged or has more than the engines of one board.
    """
    with ZipContainer(addition) as archive:
        manifest = parse_manifest(archive.read(NAME), str(addition))
        members = {name: archive.read(name) for name in archive.sizes if name != NAME}
    _check_engines_only(before.manifest, manifest)
    for name, member in manifest.members.items():
        if name in members:
            check_content(name, members[name], member, str(addition))
        elif before.manifest.members.get(name) == member:
            members[name] = before.read(name)
        else:
            raise ArtifactError(
                "the board's answer is not complete",
                why=f"member {name!r} is neither in it nor in {before.path}",
                fix="build again",
            )
    signature = before.signature if manifest == before.manifest else b""
    return manifest, save_bundle(output, manifest, members, signature=signature)


def _check_engines_only(sent: Manifest, back: Manifest) -> None:
    """Check an answer, which will be signed. Raises ArtifactError: it changed more than one board's engines."""
    targets = [one for one in {**sent.compiled, **back.compiled} if sent.compiled.get(one) != back.compiled.get(one)]
    engines = {path for one in targets if one in sent.compiled for path in sent.compiled[one].members}
    changed = sorted(name for name in sent.members.keys() - engines if sent.members[name] != back.members.get(name))
    others = back.model_copy(update={"compiled": sent.compiled, "members": sent.members})
    if len(targets) > 1 or changed or others != sent:
        what = f"member {changed[0]!r}" if changed else "the manifest" if others != sent else "engines of other boards"
        why = f"it changed {what}; a board may add only its own engines"
        raise ArtifactError("the board's answer is refused", why=why, fix="find out who answers there, and build again")


# The end of a job: the file to fetch, or an error.

_DISK_FULL_BYTES = 4 * 2**20
"""Free space below which a failed build counts as failed for lack of space."""


def result_member(end: Mapping[str, Any], error: Mapping[str, Any], address: str) -> Member:
    """Return the file to fetch, given the end that ``edgert job follow`` reports, and the compiler's error if any.

    Raises the reported error, or one that says how the job ended.
    """
    code, log = end["code"], end["log"]
    if "result" in end:
        return Member(**end["result"])
    if end["canceled"]:
        raise Stopped("the build was stopped", where=address, fix=_BUILD_AGAIN)
    if reported := end.get("error") or error:
        raise remote_error(address, reported)
    if end["free_bytes"] < _DISK_FULL_BYTES:
        raise ArtifactError(
            f"the disk of {address} is full",
            why=f"{end['free_bytes']} bytes are free; the build ended with: {log or 'nothing'}",
            where=address,
            fix="free some space there, or point EDGERT_CACHE at another disk",
        )
    if code is None:
        why = "its process ended without an exit code: it was killed, or the board restarted"
        why += f"; its log ends with:\n{log}" if log else ""
        raise BuildError(f"the build on {address} was interrupted", why=why, where=address, fix=_BUILD_AGAIN)
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"failed with exit code {code}"
    raise BuildError(f"edgert {how} on {address}", why=log or "it wrote nothing", where=address, fix=_BUILD_AGAIN)
