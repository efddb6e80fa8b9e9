"""The operations on a running pipeline. Each is made as a whole, or refused and changes nothing; one at a time."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from edgert.assemble import Assembly
from edgert.clock import Clock
from edgert.config import PipelineConfig, PipelineFile, SourceStage
from edgert.config.document import text_of
from edgert.config.flow import inputs_of, sources_of
from edgert.config.pipeline_file import changed_pipeline
from edgert.config.stages import STAGE_VERBS
from edgert.control.live_keys import applied, check_known, check_live, live_values, with_section
from edgert.control.request import Request, refusal
from edgert.errors import ConfigError, EdgertError, StageError, nearest
from edgert.files import replace_text
from edgert.runtime.throttle import SourceRateLimiter

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_HERE = "this program"


class Controlled(Protocol):
    """A pipeline as its control needs it."""

    @property
    def file(self) -> PipelineFile:
        """The pipeline as it runs."""
        ...

    @property
    def assembly(self) -> Assembly:
        """Its live objects."""
        ...

    @property
    def clock(self) -> Clock:
        """By which it runs."""
        ...

    @property
    def is_unpacked(self) -> bool:
        """Whether its file is that of a bundle."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return the state of the run as plain data, without secrets."""
        ...

    def changeable(self) -> None:
        """Raise StageError where it cannot be changed now, or not from this thread."""
        ...

    def changed(self, file: PipelineFile) -> None:
        """Note that the pipeline runs as this file has it now."""
        ...


class Control:
    """Changes a running pipeline. Every method may be called from any thread but those of the pipeline.

    A method that raises has changed nothing.
    """

    def __init__(self, run: Controlled) -> None:
        self._run, self._turn = run, threading.Lock()

    def show(self) -> dict[str, Any]:
        """Return the pipeline as plain data: its sources and stages with their rates, and every live key."""
        return self._done("show", (), _HERE)

    def set(self, key: str, value: object) -> dict[str, Any]:
        """Change a live key, such as ``stages.find.every``; return its value before and now.

        Args:
            key: as in ``--set``.
            value: plain data, or text as in ``--set``.

        Raises:
            ConfigError: no such key, or a value that it cannot have.
            StageError: the key is not live; says what the change needs.
        """
        text = value if isinstance(value, str) else json.dumps(value)
        return self._done("set", (f"{key}={text}",), _HERE)

    def pause(self, source: str) -> dict[str, Any]:
        """Have no frame of a source go on: those of a camera are dropped, those of a file wait.

        Raises:
            StageError: no such source.
        """
        return self._done("pause", (source,), _HERE)

    def resume(self, source: str) -> dict[str, Any]:
        """Undo :meth:`pause`. Raises StageError where there is no such source."""
        return self._done("resume", (source,), _HERE)

    def add(self, name: str, source: str, like: str = "") -> dict[str, Any]:
        """Add a source; every stage that listens to ``like`` listens to it, too.

        Args:
            name: of the new stage.
            source: as in ``source:``.
            like: the source whose other keys it takes over; the first one by default.

        Raises:
            EdgertError: the name is taken, the source cannot be made, or nothing can listen to it.
        """
        return self._done("add", (name, source, *filter(None, [like])), _HERE)

    def remove(self, source: str) -> dict[str, Any]:
        """Remove a source once what it gave is worked on. Raises StageError: no such source, or the last one."""
        return self._done("remove", (source,), _HERE)

    def save(self) -> dict[str, Any]:
        """Write the pipeline as it runs now to ``NAME.live.yaml`` beside its file, which stays as it is.

        Raises:
            StageError: it has no file.
            ArtifactError: it cannot be written.
        """
        return self._done("save", (), _HERE)

    def answer(self, request: Request, who: str) -> dict[str, Any]:
        """Return the answer to a request: its result, or why it was refused.

        Args:
            request: from outside of this program.
            who: asks, for the log.
        """
        try:
            return {"ok": True, "result": self._done(request.verb, request.words, who)}
        except EdgertError as error:
            return refusal(error)

    def _done(self, verb: str, words: tuple[str, ...], who: str) -> dict[str, Any]:
        """Make one operation, and log it."""
        Request(verb, words).check()
        named = " ".join((verb, *words[:1]))  # and no address of a source, which may hold a password
        operations: Mapping[str, Callable[..., dict[str, Any]]] = {
            "show": self._show,
            "set": self._set,
            "pause": partial(self._pause, True),
            "resume": partial(self._pause, False),
            "add": self._add,
            "remove": self._remove,
            "save": self._save,
        }
        with self._turn:
            try:
                self._run.changeable()
                result = operations[verb](*words)
            except EdgertError as error:
                _LOG.info("%s, by %s: refused: %s", named, who, error.what)
                raise
        if verb != "show":
            _LOG.info("%s, by %s: done", named, who)
        return result

    def _show(self) -> dict[str, Any]:
        run = self._run
        config, state = run.file.config, run.state()
        recent = state.get("recent", {})
        sources, stages = {}, {}
        for name, stage in config.stages.items():
            of = state.get("stages", {}).get(name, {})
            rates = recent.get("stages", {}).get(name, {})
            row = {"fps": rates.get("fps"), "frames": of.get("results_out"), "dropped": of.get("dropped")}
            if isinstance(stage, SourceStage):
                sources[name] = {"state": self._state_of(name, of.get("source") or {}), **row}
            else:
                kind = next(verb for verb in STAGE_VERBS if verb in type(stage).model_fields)
                stages[name] = {"kind": kind, "from": list(inputs_of(stage)), **row}
        about = {"pipeline": config.name, "file": str(run.file.document.path.absolute())}
        return {**about, "sources": sources, "stages": stages, "live": live_values(config, run.assembly)}

    def _state_of(self, name: str, stats: Mapping[str, Any]) -> str:
        task = self._run.assembly.ends[name]
        limiter = task.execution.limiter
        if task.meter.status.has_ended:
            return "ended"
        if limiter is not None and limiter.paused:
            return "paused"
        return f"down: {stats.get('reason') or 'no frame yet'}" if stats.get("up") is False else "running"

    def _set(self, text: str) -> dict[str, Any]:
        run, assembly = self._run, self._run.assembly
        key = text.partition("=")[0].strip()
        before = run.file.config
        try:
            file = changed_pipeline(run.file, self._data(), [text])
        except ConfigError:
            check_known(key, before)  # whose error is clearer
            raise
        place, own = check_live(key, before, assembly)
        was = live_values(before, assembly)
        config = with_section(before, place, file.config, own)
        file = PipelineFile(config, file.document, run.file.passed_over)
        for apply in applied(place, own, file, assembly):
            apply()
        run.changed(file)
        name = ".".join((*place, own))
        return {"key": name, "was": was[name], "is": live_values(config, assembly)[name]}

    def _pause(self, is_paused: bool, name: str) -> dict[str, Any]:
        self._source(name)
        task = self._run.assembly.ends[name]
        limiter = task.execution.limiter
        if limiter is None:
            live = bool(getattr(task.stage, "live", False))
            limiter = task.execution.limiter = SourceRateLimiter(live, self._run.clock)
        limiter.paused = is_paused
        return {"source": name, "state": self._state_of(name, {})}

    def _add(self, name: str, source: str, like: str = "") -> dict[str, Any]:
        run = self._run
        stages = run.file.config.stages
        if name in stages:
            raise StageError(f"a stage {name!r} is there already", fix="give the source another name")
        like = like or next(one for one, stage in stages.items() if isinstance(stage, SourceStage))
        self._source(like)
        self._check_budgets("added")
        data = self._data()
        data["stages"][name] = {"on_error": "drop", **data["stages"][like], "source": source}
        inputs = {one: (*inputs_of(stage), name) for one, stage in stages.items() if like in inputs_of(stage)}
        file = self._rewired(data, inputs)
        file = self._with_stages(file, {**stages, name: file.config.stages[name]}, inputs)
        for one, reached in sources_of(file.config.stages).items():
            if name in reached and getattr(file.config.stages[one], "sink", "") == "record":
                why = f"{one!r} records packets of the cameras that it began with"
                raise StageError(f"{name!r} cannot be added", why=why, fix="add it to the file and restart")
        run.assembly.add_source(file, name, like)
        run.changed(file)
        return {"source": name, "listeners": list(inputs)}

    def _remove(self, name: str) -> dict[str, Any]:
        run = self._run
        stages = run.file.config.stages
        self._source(name)
        if sum(isinstance(stage, SourceStage) for stage in stages.values()) == 1:
            why, fix = "a pipeline needs one", f"edgert ctl pause {name}; or stop the run"
            raise StageError(f"{name!r} is the last source", why=why, fix=fix)
        self._check_budgets("removed")
        inputs = {
            one: tuple(other for other in inputs_of(stage) if other != name)
            for one, stage in stages.items()
            if name in inputs_of(stage)
        }
        if alone := [one for one, left in inputs.items() if not left]:
            why = f"{' and '.join(alone)} would listen to nothing"
            raise StageError(f"{name!r} cannot be removed", why=why, fix=f"edgert ctl pause {name}")
        data = self._data()
        del data["stages"][name]
        file = self._rewired(data, inputs)
        file = self._with_stages(file, {one: stage for one, stage in stages.items() if one != name}, inputs)
        run.assembly.remove_source(file, name)
        run.changed(file)
        return {"source": name, "listeners": list(inputs)}

    def _save(self) -> dict[str, Any]:
        file = self._run.file
        path = file.document.path
        if self._run.is_unpacked or not path.is_file():
            why = "it runs from a bundle" if self._run.is_unpacked else "it was given as a mapping, or its file is gone"
            raise StageError("this pipeline cannot be saved", why=why, fix="run it from a file")
        is_own = path.stem.endswith(".live")
        target = path if is_own else path.with_name(f"{path.stem}.live.yaml")
        if not target.exists():
            _touch(target, like=path)
        data = {"name": file.config.name, **file.document.data}
        text = text_of(changed_pipeline(file, data).document)
        replace_text(target, f"# {path.name} as it ran when edgert ctl save wrote this\n{text}")
        return {"path": str(target.absolute())}

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = deepcopy(self._run.file.document.data)
        return data

    def _source(self, name: str) -> None:
        """Raise StageError unless there is such a source."""
        stages = self._run.file.config.stages
        known = [one for one, stage in stages.items() if isinstance(stage, SourceStage)]
        if name not in known:
            raise StageError(f"no source {name!r}{nearest(name, known)}", fix=f"sources: {', '.join(known)}")

    def _check_budgets(self, done: str) -> None:
        budgets = self._run.file.config.budgets
        if budgets != type(budgets)():
            why = "budgets: is planned for the sources of the start"
            raise StageError(f"no source can be {done}", why=why, fix="change the file and restart")

    def _rewired(self, data: dict[str, Any], inputs: Mapping[str, tuple[str, ...]]) -> PipelineFile:
        """Return the pipeline with other data and inputs of stages, checked."""
        for one, names in inputs.items():
            data["stages"][one]["from"] = list(names)
        return changed_pipeline(self._run.file, data)

    def _with_stages(
        self, file: PipelineFile, stages: Mapping[str, Any], inputs: Mapping[str, tuple[str, ...]]
    ) -> PipelineFile:
        """Return a checked document with the sections that run, which were made to fit this machine."""
        made = {one: stage.model_copy(update={"inputs": inputs[one]}) if one in inputs else stage
                for one, stage in stages.items()}  # fmt: skip
        config: PipelineConfig = self._run.file.config.model_copy(update={"stages": made})
        return PipelineFile(config, file.document, self._run.file.passed_over)


def _touch(path: Path, like: Path) -> None:
    """Make an empty file that the same people may read as another one."""
    from contextlib import suppress

    with suppress(OSError):  # writing it says why
        path.touch(like.stat().st_mode & 0o777)
