"""Last step of a build, on the machine that will run the bundle: compilation, checks and timing of missing engines.

Engines become members of the bundle, and are used only on the machine that compiled them.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from edgert.backend import Store
from edgert.backend.chain import Chain, Skipped, why_not
from edgert.backend.tensorrt.engine_cache import POWER_MODE, Facts, changes, key_of, read_record
from edgert.backend.tensorrt.trt_backend import TrtBackend
from edgert.board import HOST, Machine, detect
from edgert.board.detect import VARIABLE
from edgert.board.record import Board, board, board_names
from edgert.bundle.bundle import Bundle, open_bundle, save_bundle
from edgert.bundle.manifest import CompiledEntry, EngineChecks, EngineEntry, Manifest, PlanEntry
from edgert.compiler import engine_checks
from edgert.compiler.board_engines import BuildEvents, BundleEngines, Compiled
from edgert.config import PipelineFile, load_pipeline
from edgert.config.engine_choice import TENSORRT, TENSORRT_DLA
from edgert.engine import engine_store
from edgert.errors import ArtifactError, DeviceError
from edgert.files import FileStore
from edgert.reporter import OnProgress, reporter_of
from edgert.steps import to_json
from edgert.zip_archive import member_of

FOLDER = "engines"


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of finishing a bundle.

    Attributes:
        path: path of the bundle with engines; None if they were only cached on this machine.
        manifest: manifest of the bundle.
        engines: model → engine that runs it here now; without models that no engine runs here.
        waiting: model → engine that was compiled, but cannot run it yet, with what is missing.
        skipped: skipped engines, with reasons.
        target: folder of this machine's engines in the bundle; empty if TensorRT compiled none.
        written: whether the bundle was written; False if the same bundle existed already.
        size_bytes: size of the bundle; 0 without one.
        seconds: duration.
    """

    path: Path | None
    manifest: Manifest
    engines: Mapping[str, str]
    waiting: Mapping[str, Skipped]
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
    signers: Path | None = None,
    on_progress: OnProgress | None = None,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    store: FileStore | None = None,
) -> Finished:
    """Compile every model of a bundle for the first engine of its chain that accepts it on this machine.

    Blocks until done. Engines are cached, so that an interrupted call resumes, and ``edgert run`` finds them. Without a
    GPU that runs them, engines are compiled but neither compared nor timed.

    Args:
        bundle: file of the bundle.
        output: path of the bundle to write, with the engines as members; None: they are only cached.
        strict: whether it is an error if an engine is skipped, or runs nodes elsewhere than planned.
        signers: file of accepted signers; None: any bundle is accepted.
        on_progress: function called for every event; if it raises, the compilation ends.
        machine: the machine; by default this one.
        trt: TensorRT's backend; by default that of this machine.
        store: cache of engines; by default that of the user.

    Raises:
        ArtifactError: the bundle is damaged, for another board, signed by none of the signers, or cannot be written.
        BuildError: no engine accepts a model, or with ``strict`` the first one does not.
        PlacementError: with ``strict``, an engine runs nodes elsewhere than planned.
    """
    started, skipped = time.perf_counter(), list[Skipped]()
    report, here = reporter_of(on_progress), machine or detect()
    trt, store, events = trt or TrtBackend(), store or engine_store(), BuildEvents(report)
    trt.listener = events.listener(report.stop)
    with report.ends(), open_bundle(bundle) as opened, opened.temporary_folder() as unpacked:
        opened.signer(signers)
        manifest = opened.manifest
        if difference := check_board(manifest, here, str(bundle)):
            events.note(difference)
        opened.extract(unpacked, members_but_engines(manifest))

        def skip(one: Skipped) -> None:
            skipped.append(one)
            events.skipped(one)

        reasons = partial(why_not, machine=here, trt=trt, runs=False)  # TensorRT-RTX compiles without a GPU, too
        chain = Chain(manifest.engines, reasons, strict=strict, report=skip, where=str(bundle), stop=report.stop)
        uses_tensorrt = not trt.why_no_library() and not {TENSORRT, TENSORRT_DLA}.isdisjoint(chain.engines)
        if uses_tensorrt and (unused := cache_engines(opened, trt.timed_facts, store)):
            events.note(unused)
        opens = uses_tensorrt and not trt.why_not()
        engines = BundleEngines(unpacked, manifest, chain, trt, store, events, opens=opens)
        compiled, runs, waiting = dict[str, tuple[Compiled, ...]](), dict[str, str](), dict[str, Skipped]()
        for model, config in pipeline_of(manifest, unpacked).config.models.items():
            choice = chain.first_engine(model, partial(engines.compiled, model, config))
            compiled[model] = choice.compiled
            left = chain.engines[chain.engines.index(choice.engine) :]
            able = next((one for one in left if not why_not(one, here, trt)), "")
            if able:
                runs[model] = able
            if able != choice.engine:
                waiting[model] = Skipped(choice.engine, why_not(choice.engine, here, trt), model)
        target = machine_folder(trt.timed_facts) if any(compiled.values()) else ""
        written, size_bytes = False, 0
        if output is not None:
            members = {path: opened.read(path) for path in manifest.members}
            if target:
                manifest, members = pack_engines(manifest, members, trt.timed_facts, compiled)
            signature = opened.signature if manifest is opened.manifest else b""
            written = save_bundle(output, manifest, members, signature)
            size_bytes = output.stat().st_size
    seconds = time.perf_counter() - started
    return Finished(output, manifest, runs, waiting, tuple(skipped), target, written, size_bytes, seconds)


def pipeline_of(manifest: Manifest, folder: Path, overrides: Sequence[str] = ()) -> PipelineFile:
    """Return the pipeline of a bundle that is unpacked into a folder.

    Raises:
        ArtifactError: it names a model that the bundle does not have.
        ConfigError: an override is invalid.
    """
    file = load_pipeline(folder / manifest.pipeline, overrides)
    if missing := sorted(file.config.models.keys() - manifest.models.keys()):
        raise ArtifactError(
            f"the bundle has no model {missing[0]!r}",
            why=f"{manifest.pipeline} names it; its manifest has {', '.join(sorted(manifest.models)) or 'none'}",
            fix="build it again: edgert build PIPELINE",
        )
    return file


def check_board(manifest: Manifest, machine: Machine, where: str) -> str:
    """Return a note if a bundle was built for another board but can run on this one; else an empty text.

    Raises:
        ArtifactError: this Jetson has another chip, GPU or DLA than the board of the bundle.
        DeviceError: edgert does not run on this board, according to its board file.
    """
    if not machine.is_jetson or manifest.board == HOST:
        return ""
    if machine.board is None:
        return (
            f"this bundle is for {manifest.board}, and this board cannot be identified: it is assumed to be one "
            f"({VARIABLE}={manifest.board} confirms it; edgert doctor shows what is missing)"
        )
    is_known, is_own = manifest.board in board_names(), manifest.board == machine.name
    if is_known and (differences := _differences(board(manifest.board), machine.board)):
        raise ArtifactError(
            f"this bundle is for {manifest.board}",
            why=f"this machine is {machine.name}, with {' and '.join(differences)}: its placement does not fit here",
            where=where,
            fix=f"edgert build PIPELINE --board {machine.name}",
        )
    if machine.board.without_edgert:
        raise DeviceError(
            f"edgert does not run on a {machine.board.title}",
            why=machine.board.jetpack.no_edgert,
            where=where,
            fix=f"on another machine: edgert export {Path(where).name} --format onnx -o models, for TensorRT here",
        )
    if not is_known and not is_own:
        return f"this bundle is for {manifest.board}, a board file that is not here to compare with {machine.name}"
    doubt = f"this bundle is for {manifest.board}; on {machine.name} its predictions of speed and memory do not hold"
    return "" if is_own else doubt


def _differences(wanted: Board, here: Board) -> list[str]:
    facts = (
        ("chip", wanted.soc, here.soc),
        ("GPU", f"{wanted.gpu.sms} SMs", f"{here.gpu.sms} SMs"),
        ("DLA", f"{wanted.dla.cores} cores", f"{here.dla.cores} cores"),
    )
    return [f"{name} {found} instead of {requested}" for name, requested, found in facts if requested != found]


def members_but_engines(manifest: Manifest) -> list[str]:
    """Return all members but the engines."""
    engines = {path for entry in manifest.compiled.values() for path in entry.members}
    return [path for path in manifest.members if path not in engines]


def machine_folder(facts: Facts) -> str:
    """Return the name of a machine's folder, such as ``orin-nx-16gb-10.3.0-1a2b3c4d``; equal for equal facts."""
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:8]
    words = f"{facts.get('module', 'machine')}-{facts['TensorRT']}-{digest}"
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", words).lower()


def pack_engines(
    manifest: Manifest, members: Mapping[str, bytes], facts: Facts, compiled: Mapping[str, Sequence[Compiled]]
) -> tuple[Manifest, dict[str, bytes]]:
    """Return a bundle's manifest and members with the new engines of this machine instead of old ones.

    Args:
        manifest: manifest of the bundle.
        members: members of the bundle.
        facts: facts of this machine.
        compiled: model → engines.
    """
    target = machine_folder(facts)
    old = set(manifest.compiled[target].members) if target in manifest.compiled else set()
    content = {path: data for path, data in members.items() if path not in old}
    engines: dict[str, list[EngineEntry]] = {}
    for model, found in compiled.items():
        for number, one in enumerate(found):
            base = f"{FOLDER}/{target}/{model}-{number}"
            plans = list[PlanEntry]()
            for at, made in enumerate(one.plans):
                each = f"{base}-{at}" if at else base
                plans.append(PlanEntry(plan=f"{each}.plan", record=f"{each}.json"))
                content |= {plans[-1].plan: made.result.plan, plans[-1].record: made.record}
            content[checks := f"{base}.engine_checks.json"] = to_json(one.checks)
            entry = EngineEntry(**dict(plans[0]), checks=checks, weight=one.spec.weight, others=plans[1:])
            engines.setdefault(model, []).append(entry)
    entries = {**manifest.compiled, target: CompiledEntry(facts=dict(facts), engines=engines)}
    listed = {path: member_of(data) for path, data in sorted(content.items())}
    return manifest.model_copy(update={"compiled": entries, "members": listed}), content


def cache_engines(bundle: Bundle, facts: Facts, store: Store) -> str:
    """Cache a bundle's engines that this machine compiled in any power mode, those of the current mode first.

    Returns:
        Why the bundle's engines are not used; empty if some are this machine's, or there are none.

    Raises:
        ArtifactError: a member is damaged, or cannot be cached.
    """
    compiled = bundle.manifest.compiled
    mine = [entry for entry in compiled.values() if not changes(_lasting(entry.facts), _lasting(facts))]
    for entry in sorted(mine, key=lambda entry: entry.facts != dict(facts)):
        for engine in (one for engines in entry.engines.values() for one in engines):
            _cache_engine(bundle, engine, entry.facts.get(POWER_MODE, ""), store)
    if mine or not compiled:
        return ""
    nearest = min((changes(_lasting(entry.facts), _lasting(facts)) for entry in compiled.values()), key=len)
    return f"the bundle's engines are another machine's and are not used: {', '.join(nearest)}"


def _lasting(facts: Facts) -> Facts:
    """Return the facts that engines depend on, without the power mode, which changes only their times."""
    return {name: value for name, value in facts.items() if name != POWER_MODE}


def _cache_engine(bundle: Bundle, engine: EngineEntry, mode: str, store: Store) -> None:
    keys = list[str]()
    for one in (engine, *engine.others):
        record = bundle.read(one.record)
        keys.append(key_of(read_record(record, f"{bundle.path}: {one.record}")["facts"]))
        if store.get(keys[-1]) is None:
            store.put(keys[-1], record + bundle.read(one.plan))
    key = keys[0]
    if engine_checks.cached_checks(store, key, mode, ran=False) is None:
        engine_checks.cache_checks(store, key, mode, json.loads(bundle.read(engine.checks)))


class EngineReport(BaseModel):
    """A compiled engine of a bundle.

    Attributes:
        target: folder of the machine in the bundle.
        model: name of the model in the pipeline.
        number: number of the engine among those of the model on that machine, from 0.
        weight: share of the frames, relative to the model's other engines.
        facts: facts of the machine that it depends on: module, TensorRT, power mode and others.
        library: TensorRT that made it.
        compile_s: duration of the compilation.
        attempts: lines on why it was compiled otherwise than requested.
        size_bytes: size of its plans.
        checks: planned and actual places of its nodes, times and memory.
    """

    target: str
    model: str
    number: int
    weight: int
    facts: dict[str, str]
    library: str
    compile_s: float
    attempts: list[str]
    size_bytes: int
    checks: EngineChecks


def compiled_engines(bundle: Bundle) -> tuple[EngineReport, ...]:
    """Return reports on the engines of all machines, in the manifest's order; empty for an unfinished bundle.

    Raises:
        ArtifactError: a member is damaged, or was written by another edgert.
    """
    return tuple(
        EngineReport(
            target=target,
            model=model,
            number=number,
            weight=engine.weight,
            facts=entry.facts,
            library=record["result"]["library"],
            compile_s=record["result"]["seconds"],
            attempts=record["attempts"],
            size_bytes=sum(bundle.manifest.members[one.plan].size_bytes for one in (engine, *engine.others)),
            checks=EngineChecks.model_validate_json(bundle.read(engine.checks)),
        )
        for target, entry in bundle.manifest.compiled.items()
        for model, engines in entry.engines.items()
        for number, engine in enumerate(engines)
        for record in [read_record(bundle.read(engine.record), str(bundle.path))]
    )
