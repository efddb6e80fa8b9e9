"""The step that searches for what runs a model fastest on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.build.model_steps import random_feeds
from edgert.build.prepared import Prepared
from edgert.build.subject import FEW, MODEL, as_files
from edgert.build.target import BuildTarget
from edgert.build.tune_freedom import default_of, freedom_of, users_of
from edgert.compiler import Event, Product, Step, digest_of
from edgert.compiler.build import Runner
from edgert.compiler.step import Report, code_version, to_json
from edgert.config import PipelineConfig, PipelineFile, SourceStage
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from edgert.backend.base import Array
    from edgert.tune.candidate import Freedom
    from edgert.tune.heat import Track
    from edgert.tune.search import Bounds
    from edgert.tune.tactic import Tactic

TUNE = "tune.json"
_KEYS = {"backend", "threads", "replicas", "tuning", "precision"}
_NEAR, _NEXT_TO_NOTHING = 1.1, 1e-3
"""How much further from the float model an engine's outputs may be than its form's under ONNX Runtime, whose accuracy
is known: by a tenth, or by what float32 sums in another order make of them."""


def check_tune(target: BuildTarget) -> None:
    """Raises ConfigError for a board, whose engines cannot be measured here."""
    if target.board is not None:
        raise ConfigError(
            f"--tune cannot measure {target.name} here",
            why="times are those of the machine that edgert runs on, and a board compiles engines of its own",
            where="--tune",
            fix="--board host, for this machine; TensorRT searches for tactics itself when the board compiles",
        )


def tuned(file: PipelineFile, ready: Mapping[str, Prepared], runner: Runner) -> dict[str, Prepared]:
    """The models with what was found for them, one after the other, as each needs the machine for itself.

    Raises:
        BudgetError: nothing keeps the budgets.
        EdgertError: the default engine cannot run, or the search was stopped.
    """
    found = {}
    for name, one in ready.items():
        why = why_not(file.config, name)
        if why:
            runner.tell(Event("tune", name, "skipped", detail=why))
            found[name] = one
            continue
        product = runner.do(tune_step(file, ready, name))
        found[name] = replace(one, files={**one.files, "tune": product.files[TUNE]})
    return found


def why_not(config: PipelineConfig, name: str) -> str:
    """Why there is nothing to search for a model; empty if there is."""
    model = config.models[name]
    if not users_of(config, name):
        return "no stage runs it"
    if model.backend == "null":
        return "backend null computes nothing"
    return "" if model.placement == "auto" else "its placement is written in the pipeline file"


def tune_step(file: PipelineFile, ready: Mapping[str, Prepared], name: str) -> Step:
    """Promises the fastest of many tactics that keeps accuracy and budgets, never slower than the default."""
    from edgert.tune.machine import identity

    one, config, machine = ready[name], file.config.models[name], identity()
    live = is_live(file)
    freedom = freedom_of(file, one, live)
    measured = {
        "edgert": code_version(),
        "machine": machine,
        "forms": {form: product.digest for form, product in one.forms.items()},
        "section": config.model_dump(mode="json", include={"input", "profiles", "tensorrt"}),
        "pictures": one.subject.pictures,
    }
    facts = {
        "measured": measured,
        "live": live,
        "section": config.model_dump(mode="json", include=_KEYS),
        "freedom": repr(freedom),
        "budgets": file.config.budgets.model_dump(mode="json", include={"memory", "latency"}),
        "others": {other.subject.name: other.digest for other in ready.values()},
    }

    def make(report: Report) -> Mapping[str, bytes]:
        from edgert.board.memory import free_bytes
        from edgert.tune.journal import Journal
        from edgert.tune.memory import footprint
        from edgert.tune.search import Search

        journal = Journal(one.subject.state / f"timings-{digest_of(measured)[:40]}.json")
        track = _track(one, freedom, report)
        with as_files({f"{form}.onnx": product.files[MODEL] for form, product in one.forms.items()}) as folder:

            def measure(tactic: Tactic) -> Any:
                return footprint(tactic, folder / f"{tactic.form}.onnx", config)

            bounds = _bounds(file, ready, name, live)
            search = Search(freedom, track, bounds, measure, journal, free_bytes(), report.note)
            found = search.run(live, machine)
        return {TUNE: to_json(found.to_json())}

    def promise(files: Mapping[str, bytes]) -> str:
        from edgert.tune.trial import tuned_of

        return tuned_of(Product(files).json(TUNE)).told

    return Step("tune", name, 2, facts, make, promise)


def is_live(file: PipelineFile) -> bool:
    """Whether frames come from a camera or the like: then a frame's own time counts, else how many there are."""
    from edgert.stages.source.select import is_live as is_live_source

    stages, directory = file.config.stages.values(), file.document.path.parent
    return any(is_live_source(stage, directory) for stage in stages if isinstance(stage, SourceStage))


def _track(one: Prepared, freedom: Freedom, report: Report) -> Track:
    from edgert.backend.ort import Function
    from edgert.precision.speed import MOST_ROUNDS
    from edgert.tune.candidate import structures
    from edgert.tune.heat import Track

    subject = one.subject
    models = {form: subject.model(product.files[MODEL]) for form, product in one.forms.items()}
    feed = _feed(one)
    known = {form: Function(model)(feed) for form, model in models.items()}
    return Track(
        config=subject.config,
        models=models,
        feed=feed,
        wrong=_judge(known),
        streams=max(tactic.frames for tactic in structures(freedom)),
        stop=subject.stop,
        told=lambda done: report.progress(done, MOST_ROUNDS, "turns"),
    )


def _judge(known: Mapping[str, Mapping[str, Array]]) -> Callable[[str, Mapping[str, Array]], str]:
    """Holds an engine's outputs to the distance from the float model that its form has.

    Args:
        known: form → its outputs by ONNX Runtime.
    """
    from edgert.build.verify_step import distance

    def error(outputs: Mapping[str, Array]) -> float:
        found = distance([known["float"]], [outputs])["relative_error"]
        return math.inf if found is None else float(found)

    def wrong(form: str, outputs: Mapping[str, Array]) -> str:
        found, most = error(outputs), _NEAR * error(known[form]) + _NEXT_TO_NOTHING
        return "" if found <= most else f"relative error {found:.2g}, at most {most:.2g}"

    return wrong


def _feed(one: Prepared) -> Mapping[str, Array]:
    """A picture as the pipeline would feed it; numbers for a model that takes something else."""
    from edgert.feed import feed_of
    from edgert.graph.spec import inputs

    subject, content = one.subject, one.forms["float"].files[MODEL]
    model = subject.model(content)
    specs = inputs(model)
    if len(specs) == 1 and len(specs[0].shape) == 4:
        return feed_of(subject.album, model, subject.config).feeds(0)
    return next(random_feeds(subject, content, FEW))


def _bounds(file: PipelineFile, ready: Mapping[str, Prepared], name: str, live: bool) -> Bounds:
    """The pipeline's budgets as they are left for one model: other models are counted with their default engines."""
    from edgert.tune.memory import footprint
    from edgert.tune.search import Bounds

    budgets = file.config.budgets
    latency_ms = None if budgets.latency is None else budgets.latency * 1e3
    if budgets.memory is None:
        return Bounds(None, latency_ms)
    room = budgets.memory
    for other, one in ready.items():
        if not users_of(file.config, other):
            continue
        tactic = default_of(file, one, live)
        with as_files({MODEL: one.forms[tactic.form].files[MODEL]}) as folder:
            found = footprint(tactic, Path(folder) / MODEL, file.config.models[other])
        room -= found.base_bytes if other == name else found.engine_bytes
    return Bounds(room, latency_ms)
