"""Build step that searches for the fastest settings of a model on this machine."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgert.assemble import replicas_of, threads_of
from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.board.host import core_accelerators, free_bytes
from edgert.compiler.build_target import MODEL, BuildTarget, as_files, is_live, stages_running
from edgert.compiler.model_forms import ModelForms
from edgert.compiler.model_steps import distance, typical_feeds
from edgert.config import InferStage, PipelineConfig, PipelineFile
from edgert.errors import ConfigError
from edgert.graph import inputs
from edgert.quantization.throughput import MOST_ROUNDS
from edgert.reporter import Progress
from edgert.steps import Product, Report, Runner, Step, code_version, digest_of, to_json
from edgert.tuner import candidates, memory_use
from edgert.tuner.candidates import ORT, SearchSpace, Tactic, backends_of, combinations, forms_of, powers
from edgert.tuner.rounds import RoundSetup
from edgert.tuner.tactic_search import Search
from edgert.tuner.trials import Journal, identity, tuned_of

# Settings that a search may change: those that the pipeline file leaves open and this machine supports.

_ALWAYS = {
    "channels last on a processor": "ONNX Runtime has its own layout there, which optimization: all uses and extended "
    "leaves out",
    "denormal numbers": "ONNX Runtime decides about them once per process, so that "
    "engines cannot be compared in interleaved runs",
    "CUDA graphs": "a pipeline on a GPU records its runs wherever they can be recorded",
}


def default_tactic(file: PipelineFile, one: ModelForms, live: bool) -> Tactic:
    """Return the tactic that a pipeline uses without tuning."""
    name, config = one.job.name, file.config.models[one.job.name]
    replicas = replicas_of(file.config, name, live)
    backend = "ort" if config.backend == "auto" else config.backend
    threads = threads_of(file.config, name) // replicas
    most, *_ = _batches(file.config, one).get(one.host, (1,))
    return Tactic(backend, one.host, replicas, threads, tuning=config.tuning, batch=most)


def search_space(file: PipelineFile, one: ModelForms, live: bool) -> SearchSpace:
    """Return the tactics that may be tried."""
    name, config = one.job.name, file.config.models[one.job.name]
    users = stages_running(file.config, name).values()
    infers = [stage for stage in file.config.stages.values() if isinstance(stage, InferStage)]
    threads = threads_of(file.config, name)
    requested = (ORT,) if file.config.engines else backends_of(config)  # the chain of a bundle for host has only this
    absences = {backend: candidates.why_not(backend) for backend in requested}
    free = SearchSpace(
        default=default_tactic(file, one, live),
        backends=tuple(backend for backend, why in absences.items() if not why),
        forms=forms_of(config.precision, one.forms),
        threads=threads,
        fixed_threads=config.threads is not None,
        fixed_replicas=config.replicas is not None,
        replicated=not live and all(stage.parts is None for stage in users),
        pinned=len(infers) == 1 and len(core_accelerators()) >= threads,
        batches=_batches(file.config, one),
    )
    reasons = {backend: why for backend, why in absences.items() if why} | dict(_left_out(file, one, free, live))
    return replace(free, left_out=reasons | _ALWAYS)


def _batches(config: PipelineConfig, one: ModelForms) -> Mapping[str, tuple[int, ...]]:
    """Return form → batch sizes: that of the stages, or smaller ones too if the form's batch is dynamic."""
    stages = stages_running(config, one.job.name).values()
    sizes = {stage.batch.max if stage.batch is not None else 1 for stage in stages}
    most = max(sizes, default=1)
    found = dict[str, tuple[int, ...]]()
    for form, product in one.forms.items() if most > 1 else ():
        rows = [spec.shape[0] if spec.shape else 1 for spec in inputs(one.job.model(product.files[MODEL]))]
        fixed = [size for size in rows if isinstance(size, int)]
        if fixed:
            found[form] = (most if min(fixed) >= most else 1,)
        else:
            found[form] = powers(most) if len(sizes) == 1 else (most,)
    return found


def _left_out(file: PipelineFile, one: ModelForms, free: SearchSpace, live: bool) -> Iterator[tuple[str, str]]:
    config = file.config.models[one.job.name]
    if file.config.engines:
        yield "other backends", "engines: names what runs the models"
    elif config.backend != "auto":
        yield "other backends", f"the file sets backend: {config.backend}"
    if config.precision != "auto":
        yield "other precisions", f"the file sets precision: {config.precision}"
    elif len(one.forms) == 1:
        yield "other precisions", "the build made none; precision: auto with calibrate: makes INT8"
    if live:
        yield "replicas", "waiting for a second frame of a camera would only add latency"
    if not free.batches:
        yield "batches", "no stage sets batch:"
    elif all(len(sizes) == 1 for sizes in free.batches.values()):
        yield "other batches", "the model's batch size is fixed, or its stages ask for different ones"


TUNE = "tune.json"
_KEYS = {"backend", "threads", "replicas", "tuning", "precision"}
_NEAR, _NEXT_TO_NOTHING = 1.1, 1e-3
"""Factor and addend by which an engine's error may exceed that of its form under ONNX Runtime, whose accuracy is known;
the addend covers float32 sums in another order."""


def check_tune(target: BuildTarget) -> None:
    """Raise ConfigError for a board, because its engines cannot be measured here."""
    if target.board is not None:
        raise ConfigError(
            f"--tune cannot measure {target.name} here",
            why="times are those of the machine that edgert runs on, and a board compiles engines of its own",
            where="--tune",
            fix="--board host, for this machine; TensorRT searches for tactics itself when the board compiles",
        )


def tuned(file: PipelineFile, ready: Mapping[str, ModelForms], runner: Runner) -> dict[str, ModelForms]:
    """Return the models with their tactics, which are searched one after another, as each needs the whole machine.

    Raises:
        BudgetError: no tactic keeps the budgets.
        EdgertError: the default engine cannot run, or the search was stopped.
    """
    found = {}
    for name, one in ready.items():
        why = why_not(file.config, name)
        if why:
            runner.on_progress(Progress("tune", name, "skipped", detail=why))
            found[name] = one
            continue
        product = runner.do(tune_step(file, ready, name))
        found[name] = replace(one, files={**one.files, "tune": product.files[TUNE]})
    return found


def why_not(config: PipelineConfig, name: str) -> str:
    """Return why a model is not tuned; empty if it is."""
    model = config.models[name]
    if not stages_running(config, name):
        return "no stage runs it"
    if model.backend == "null":
        return "backend null computes nothing"
    return "" if model.placement == "auto" else "its placement is written in the pipeline file"


def tune_step(file: PipelineFile, ready: Mapping[str, ModelForms], name: str) -> Step:
    """Return the step that searches for the fastest of many tactics.

    It promises one that keeps accuracy and budgets, and is not slower than the default.
    """
    one, config, machine = ready[name], file.config.models[name], identity()
    live = is_live(file)
    space = search_space(file, one, live)
    measured = {
        "edgert": code_version(),
        "machine": machine,
        "forms": {form: product.digest for form, product in one.forms.items()},
        "section": config.model_dump(mode="json", include={"input", "profiles", "tensorrt"}),
        "images": one.job.images_digest,
    }
    facts = {
        "measured": measured,
        "live": live,
        "section": config.model_dump(mode="json", include=_KEYS),
        "space": repr(space),
        "budgets": file.config.budgets.model_dump(mode="json", include={"memory", "latency"}),
        "others": {other.job.name: other.digest for other in ready.values()},
    }

    def make(report: Report) -> Mapping[str, bytes]:
        journal = Journal(one.job.state / f"timings-{digest_of(measured)[:40]}.json")
        setup = _round_setup(one, space, report)
        with as_files({f"{form}.onnx": product.files[MODEL] for form, product in one.forms.items()}) as folder:

            def measure(tactic: Tactic) -> Any:
                return memory_use.footprint(tactic, folder / f"{tactic.form}.onnx", config)

            memory_bytes, latency_ms = _limits(file, ready, name, live)
            search = Search(space, setup, measure, journal, free_bytes(), report.note, memory_bytes, latency_ms)
            found = search.run(live, machine)
        return {TUNE: to_json(found.to_json())}

    def promise(files: Mapping[str, bytes]) -> str:
        return tuned_of(Product(files).json(TUNE)).summary

    return Step("tune", name, 2, facts, make, promise)


def _round_setup(one: ModelForms, space: SearchSpace, report: Report) -> RoundSetup:
    job = one.job
    models = {form: job.model(product.files[MODEL]) for form, product in one.forms.items()}
    feed = next(iter(typical_feeds(job, models["float"])))
    known = {form: Function(model)(feed) for form, model in models.items()}
    return RoundSetup(
        config=job.config,
        models=models,
        feed=feed,
        wrong=_output_check(known),
        streams=max(tactic.frames for tactic in combinations(space)),
        stop=job.stop,
        on_run=lambda done: report.progress(done, MOST_ROUNDS, "interleaved runs"),
    )


def _output_check(known: Mapping[str, Mapping[str, Array]]) -> Callable[[str, Mapping[str, Array]], str]:
    """Return a function that checks an engine's error against that of its form, and returns what is wrong.

    Args:
        known: form → outputs by ONNX Runtime.
    """

    def error(outputs: Mapping[str, Array]) -> float:
        found = distance([known["float"]], [outputs])["relative_error"]
        return math.inf if found is None else float(found)

    def wrong(form: str, outputs: Mapping[str, Array]) -> str:
        found, most = error(outputs), _NEAR * error(known[form]) + _NEXT_TO_NOTHING
        return "" if found <= most else f"relative error {found:.2g}, at most {most:.2g}"

    return wrong


def _limits(
    file: PipelineFile, ready: Mapping[str, ModelForms], name: str, live: bool
) -> tuple[int | None, float | None]:
    """Return the bytes and ms that the budgets leave for one model; others are counted with their default engines."""
    budgets = file.config.budgets
    latency_ms = None if budgets.latency is None else budgets.latency * 1e3
    if budgets.memory is None:
        return None, latency_ms
    room = budgets.memory
    for other, one in ready.items():
        if not stages_running(file.config, other):
            continue
        tactic = default_tactic(file, one, live)
        with as_files({MODEL: one.forms[tactic.form].files[MODEL]}) as folder:
            found = memory_use.footprint(tactic, Path(folder) / MODEL, file.config.models[other])
        room -= found.base_bytes if other == name else found.engine_bytes
    return room, latency_ms
