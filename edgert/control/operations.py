"""The operations on a running pipeline. Each is made as a whole, or refused and changes nothing; one at a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from edgert.config import SourceStage
from edgert.config.flow import inputs_of
from edgert.config.stages import STAGE_VERBS
from edgert.control import changing, model_changes, source_changes, trace_window
from edgert.control.controlled import Controlled
from edgert.control.live_keys import live_values
from edgert.control.model_changes import KEEP_S, MIN_AGREEMENT, SHADOW
from edgert.control.request import VERBS, Request, line_of, refusal, request_of, text_at
from edgert.control.saving import save
from edgert.control.source_changes import state_of
from edgert.errors import EdgertError
from edgert.stages.source.live import redact
from edgert.timeline.trace_file import check_trace_path, write_trace

_LOG = logging.getLogger(__name__)
_HERE = "this program"
_LONGEST = 300  # characters of a request in the log: one may have a mebibyte


class Control:
    """Changes a running pipeline. Every method may be called from any thread but those of the pipeline.

    A method that raises has changed nothing.
    """

    def __init__(self, run: Controlled) -> None:
        self._run = run

    def show(self) -> dict[str, Any]:
        """Return the pipeline as plain data: its sources and stages with their rates, every live key, and ``stats``.

        ``stats`` is the state of the run, as the summary has it. Nothing of it says where frames come from, which may
        hold a password.
        """
        return self._done(Request("show"), _HERE)

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
        return self._done(Request("set", (f"{key}={text}",)), _HERE)

    def pause(self, source: str) -> dict[str, Any]:
        """Pause a source: frames of a camera are dropped, those of a file wait.

        Raises:
            StageError: no such source.
        """
        return self._done(Request("pause", (source,)), _HERE)

    def resume(self, source: str) -> dict[str, Any]:
        """Undo :meth:`pause`. Raises StageError where there is no such source."""
        return self._done(Request("resume", (source,)), _HERE)

    def add(self, name: str, source: str, like: str = "") -> dict[str, Any]:
        """Add a source; every stage that listens to ``like`` listens to it, too.

        Args:
            name: of the new stage.
            source: as in ``source:``.
            like: source whose other keys it takes over, where they fit its kind; the first one by default.

        Raises:
            EdgertError: the name is taken, the source cannot be made, or nothing can listen to it.
        """
        return self._done(Request("add", (name, source, *filter(None, [like]))), _HERE)

    def remove(self, source: str) -> dict[str, Any]:
        """Remove a source once what it gave is worked on. Raises StageError: no such source, or the last one."""
        return self._done(Request("remove", (source,)), _HERE)

    def apply(self, file: str | Path | Mapping[str, Any], plan: str = "") -> dict[str, Any]:
        """Return the plan of what it takes to run another pipeline file, or carry it out.

        The plan has each key that differs, with its effect: it is live, restarts its stage, opens a source again, adds
        or removes one, or needs a restart. Without changes of the last kind it can be carried out, as a whole.

        Args:
            file: path of the file, or a mapping with the same keys. Paths in it are relative to the pipeline's file.
                ``--set`` of the start holds for it, too; an overlay does not.
            plan: ``plan`` of an answer, to carry that out; empty: nothing changes.

        Raises:
            ConfigError: the file cannot be read, or has a mistake.
            StageError: the pipeline or the file has changed since the plan was made; or a change needs a restart.
            EdgertError: a change cannot be made; none was.
        """
        text = json.dumps(file, default=str) if isinstance(file, Mapping) else text_at(Path(file))
        return self._done(Request("apply", (text,), {"plan": plan} if plan else {}), _HERE)

    def swap(
        self,
        model: str,
        path: str | Path,
        *,
        shadow: int = SHADOW,
        min_agreement: float = MIN_AGREEMENT,
        keep: float = KEEP_S,
    ) -> dict[str, Any]:
        """Begin to swap a model for another file; return the state of that, which :meth:`show` has from then on.

        The new model is loaded beside the old one, and runs on some of its frames. Where both surely agree, it takes
        over. Where it then fails, hangs or is too slow, the old one works again.

        Args:
            model: its name in the pipeline file.
            path: of the new ONNX file: the same inputs, task and classes.
            shadow: frames that both are compared on; 0: it takes over at once.
            min_agreement: that ``edgert eval`` would report of the two, 0 to 1.
            keep: seconds for which the old model stays loaded.

        Raises:
            EdgertError: a swap is under way, or this model cannot be swapped, or not for that one.
        """
        options = {"shadow": str(shadow), "min-agreement": str(min_agreement), "keep": f"{keep}s"}
        return self._done(Request("swap", (model, str(Path(path).absolute())), options), _HERE)

    def back(self, model: str) -> dict[str, Any]:
        """Switch back to the model before the swap, or give up a running swap; return its state.

        Raises:
            StageError: the model was not swapped, or the one before is not kept any more.
        """
        return self._done(Request("back", (model,)), _HERE)

    def save(self) -> dict[str, Any]:
        """Write what differs from the pipeline's file to its overlay ``NAME.live.yaml``; the file stays as it is.

        The next run loads the overlay after the file. Keys that were set back are not in it. Where nothing differs, the
        overlay is removed, and ``removed`` of the answer is true.

        Raises:
            StageError: it has no file.
            ArtifactError: it cannot be written.
        """
        return self._done(Request("save"), _HERE)

    def trace(self, path: str | Path, seconds: float = 10.0) -> dict[str, Any]:
        """Record what the pipeline does for so many seconds, or to its end, and write the time line of it.

        Args:
            path: of the file; ``.pftrace`` for https://ui.perfetto.dev, ``.json`` for Chrome, ``.html`` as a page.
            seconds: at most 60.

        Returns:
            The file's ``path``, ``seconds``, the number of ``events``, and how many of them found no room: ``lost``.

        Raises:
            ConfigError: another ending, or another number of seconds.
            StageError: another trace is being made.
            ArtifactError: the file cannot be written.
        """
        check_trace_path(Path(path))
        recorded = trace_window.recorded_for(self._run, trace_window.seconds_of(f"{seconds}s"))
        write_trace(recorded, Path(path))
        return {**trace_window.about(recorded), "path": str(path)}

    def traced(self, path: str | Path) -> AbstractContextManager[None]:
        """Record what the pipeline does while a ``with`` block runs, and write it as :meth:`trace` does.

        Of each thread the newest 32,768 events are kept. Works with a pipeline that is called, too.
        """
        return trace_window.traced(self._run, Path(path))

    def answer(self, request: Request, who: str) -> dict[str, Any]:
        """Return the answer to a request: its result, or why it was refused.

        Args:
            request: from outside of this program.
            who: asks, for the log.
        """
        try:
            return {"ok": True, "result": self._done(request, who)}
        except EdgertError as error:
            return refusal(error)

    def answer_line(self, line: bytes, who: str) -> bytes:
        """Return the answer to a line of JSON, as one; see :meth:`answer`."""
        try:
            return line_of(self.answer(request_of(line), who))
        except EdgertError as error:
            return line_of(refusal(error))

    def _done(self, request: Request, who: str) -> dict[str, Any]:
        """Make one operation, and log it."""
        values, verb = request.values(), VERBS[request.verb]
        operation = partial(_OPERATIONS[request.verb], self._run, *request.words, **values)
        if verb.is_reading or verb.is_long:
            return operation()
        with self._run.changing:
            began_ns = self._run.clock.now_ns()
            try:
                self._run.changeable()
                result = operation()
            except EdgertError as error:
                self._noted(request, began_ns, who, f"refused: {error.what}")
                raise
        changed = f"{result['was']} -> {result['is']}" if "is" in result else "done"
        self._noted(request, began_ns, who, "planned" if result.get("applied") is False else changed)
        return result

    def _noted(self, request: Request, began_ns: int, who: str, came: str) -> None:
        """Note an operation in the log, and in a trace that is under way."""
        named, came = _log_line(request), _without_secrets(came)
        _LOG.info("%s, by %s: %s", named, who, came)
        if (recorder := self._run.tracing.recorder) is not None:
            about = {"by": who, "result": came}
            recorder.ring().add(("operation", began_ns, recorder.now_ns(), named, "", -1, about))


def _log_line(request: Request) -> str:
    """Return a request for the log, without the text of a file and the value of a key, which may be a password."""
    kinds = zip(request.words, VERBS[request.verb].words.split(), strict=False)
    words = [word.partition("=")[0] if kind == "KEY=VALUE" else word for word, kind in kinds if kind != "FILE"]
    return _without_secrets(" ".join([request.verb, *words, *map("--{0[0]}={0[1]}".format, request.options.items())]))


def _without_secrets(text: str) -> str:
    """Return a text from outside as one line of bounded length, without passwords in addresses."""
    return " ".join(redact(text).split())[:_LONGEST]


def _show(run: Controlled) -> dict[str, Any]:
    config, state = run.file.config, run.state()
    recent = state.get("recent", {})
    sources, stages = {}, {}
    for name, stage in config.stages.items():
        if name not in run.assembly.ends:  # it goes in this moment
            continue
        of = state.get("stages", {}).get(name, {})
        rates = recent.get("stages", {}).get(name, {})
        row = {"fps": rates.get("fps"), "frames": of.get("results_out"), "dropped": of.get("dropped")}
        if isinstance(stage, SourceStage):
            sources[name] = {"state": state_of(run, name, of.get("source") or {}), **row}
        else:
            kind = next(verb for verb in STAGE_VERBS if verb in type(stage).model_fields)
            stages[name] = {"kind": kind, "from": list(inputs_of(stage)), **row}
    about = {"name": config.name, "file": str(run.file.document.path.absolute()), "label": run.label}
    parts = {"sources": sources, "stages": stages, "live": live_values(run)}
    swaps = {name: one.state.to_json() for name, one in [*run.swaps.items()]}
    return {**about, **parts, "swaps": swaps, "stats": state}


_OPERATIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "show": _show,
    "set": changing.set_key,
    "apply": changing.apply_file,
    "pause": source_changes.pause,
    "resume": source_changes.resume,
    "add": source_changes.add,
    "remove": source_changes.remove,
    "save": save,
    "swap": model_changes.swap,
    "back": model_changes.back,
    "trace": trace_window.trace,
}
"""Verb → what makes it: of the run, the words of a request, and the values of its options by name."""
