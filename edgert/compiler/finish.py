"""The last step of a build, on the machine that will run it: what a bundle misses is compiled, checked and timed."""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgert.backend.chain import Chain, Skipped, why_not
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import Machine, detect
from edgert.bundle.bundle import Bundle, open_bundle, save_bundle
from edgert.bundle.manifest import Manifest
from edgert.compiler.board_engines import BuildEvents, BundleEngines, Compiled, packed, take, target_of
from edgert.compiler.engine_checks import Policy
from edgert.compiler.unpack import check_board, models_of
from edgert.config import load_pipeline
from edgert.config.engine_choice import TENSORRT, TENSORRT_DLA
from edgert.engine import engine_store
from edgert.files import FileStore
from edgert.steps import OnEvent


@dataclass(frozen=True, slots=True)
class Waiting:
    """An engine that was compiled on a machine that cannot run it yet.

    Attributes:
        engine: its name in the chain.
        why: what is missing, in one line.
    """

    engine: str
    why: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of finishing a bundle.

    Attributes:
        path: the bundle with engines; None where they were only cached on this machine.
        manifest: what is in it.
        engines: model → the engine that runs it here now; without the models that nothing runs here.
        waiting: model → the engine that will run it instead, as soon as it can.
        skipped: the engines that do not, and why.
        target: folder of this machine's engines in the bundle; empty where TensorRT compiled none.
        written: whether the bundle was written; False where the same was there already.
        size_bytes: of the file; 0 without one.
        seconds: it took.
    """

    path: Path | None
    manifest: Manifest
    engines: Mapping[str, str]
    waiting: Mapping[str, Waiting]
    skipped: tuple[Skipped, ...]
    target: str
    written: bool
    size_bytes: int
    seconds: float


def finish(
    bundle: Path,
    output: Path | None = None,
    *,
    strict: bool = False,
    policy: Policy | None = None,
    folder: bool = False,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    store: FileStore | None = None,
) -> Finished:
    """Compiles every model of a bundle for the first engine of its chain that takes it on this machine.

    Blocks until done. Engines are cached under what they depend on, so that an interrupted build resumes, and
    ``edgert run`` finds them. Where there is no GPU to run them, engines are compiled and not compared or timed.

    Args:
        output: the bundle to write, with the engines as members; with ``folder`` a folder of plain files.
        strict: an engine that would be skipped is an error.
        policy: ``strict`` refuses an engine that runs nodes elsewhere than planned, ``warn`` logs it; by default
            as ``strict`` is.
        on_event: called for everything that happens.
        stop: ends the compilation when set.
        machine, trt, store: those of this machine by default.

    Raises:
        ArtifactError: the bundle is damaged, or for another board than this Jetson, or cannot be written.
        BuildError: no engine takes a model; or ``strict``, and the first does not.
        PlacementError: ``strict``, and an engine runs nodes elsewhere than planned.
    """
    started, skipped = time.perf_counter(), list[Skipped]()
    events = BuildEvents(on_event)
    trt = trt or TrtBackend()
    trt.listener = events.listener(stop or threading.Event())
    with open_bundle(bundle) as opened, tempfile.TemporaryDirectory(prefix="edgert-") as name:
        here = machine or detect()
        check_board(opened.manifest, here, str(bundle))
        opened.extract(Path(name), models_of(opened.manifest))

        def skip(one: Skipped) -> None:
            skipped.append(one)
            events.skipped(one)

        reasons = partial(why_not, machine=here, trt=trt, runs=False)  # TensorRT-RTX compiles without a GPU, too
        chain = Chain(opened.manifest.engines, reasons, strict=strict, report=skip, where=str(bundle), stop=stop)
        compiling = _Compiling(opened, Path(name), chain, trt, store or engine_store(), events)
        chosen = compiling.compile(policy or ("strict" if strict else "warn"))
        runs, waiting = _now(chosen, chain.engines, partial(why_not, machine=here, trt=trt))
        manifest, written, size_bytes = (
            compiling.save(output, folder) if output is not None else (opened.manifest, False, 0)
        )
    seconds = time.perf_counter() - started
    return Finished(output, manifest, runs, waiting, tuple(skipped), compiling.target, written, size_bytes, seconds)


def _now(
    chosen: Mapping[str, str], chain: Sequence[str], why_not: Callable[[str], str]
) -> tuple[dict[str, str], dict[str, Waiting]]:
    """The engine that runs each model now, and the one that waits until it can.

    Args:
        chosen: model → the engine it was compiled for.
        chain: all of them, in order.
        why_not: why an engine cannot run here; empty if it can.
    """
    runs, waiting = dict[str, str](), dict[str, Waiting]()
    for model, engine in chosen.items():
        able = next((name for name in chain[chain.index(engine) :] if not why_not(name)), "")
        if able:
            runs[model] = able
        if able != engine:
            waiting[model] = Waiting(engine, why_not(engine))
    return runs, waiting


@dataclass
class _Compiling:
    """All models of one bundle on their way to engines."""

    bundle: Bundle
    folder: Path
    chain: Chain
    trt: TrtBackend
    store: FileStore
    events: BuildEvents
    engines: dict[str, tuple[Compiled, ...]] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The folder of this machine's engines; empty where there are none."""
        return target_of(self.trt.facts) if any(self.engines.values()) else ""

    def compile(self, policy: Policy) -> dict[str, str]:
        """All models; model → the engine that was compiled for it."""
        uses_tensorrt = not self.trt.why_no_library() and bool(
            {TENSORRT, TENSORRT_DLA}.intersection(self.chain.engines)
        )
        if uses_tensorrt and (unused := take(self.bundle, self.trt.facts, self.store)):
            self.events.note(unused)
        opens = uses_tensorrt and not self.trt.why_not()
        manifest = self.bundle.manifest
        engines = BundleEngines(
            self.folder, manifest, self.chain, self.trt, self.store, self.events, policy=policy, opens=opens
        )
        chosen = {}
        for name, config in load_pipeline(self.folder / manifest.pipeline).config.models.items():
            choice = self.chain.first(name, partial(engines.compiled, name, config))
            self.engines[name], chosen[name] = choice.compiled, choice.engine
        return chosen

    def save(self, output: Path, folder: bool) -> tuple[Manifest, bool, int]:
        """Writes the bundle; what is in it, whether it had to be written, and its size."""
        members = {path: self.bundle.read(path) for path in self.bundle.manifest.members}
        manifest = self.bundle.manifest
        if self.target:
            manifest, members = packed(manifest, members, self.trt.facts, self.engines)
        written = save_bundle(output, manifest, members, folder=folder)
        return manifest, written, sum(map(len, members.values())) if folder else output.stat().st_size
