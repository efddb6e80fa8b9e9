"""The operations on a running pipeline. One is made at a time; it is made completely, or it changes nothing."""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from edgert.config import SourceStage, flow
from edgert.config.stages import STAGE_VERBS
from edgert.control import change_plan, changing, trace_window, verbs
from edgert.control.controlled import Controlled
from edgert.control.request import VERBS, Request, answer_to, parse_request, read_file
from edgert.errors import EdgertError
from edgert.runtime.worker import SHORT_TURNS
from edgert.stages.source.live import redact
from edgert.timeline.trace_file import check_trace_path, write_trace

_LOG = logging.getLogger(__name__)
_THIS_PROGRAM = "this program"
_LONGEST = 300  # characters of a request in the log: one may have a mebibyte


class Control:
    """Control of a running pipeline. Its methods may be called from any thread that is not the pipeline's.

    A method that raises an error has changed nothing.
    """

    def __init__(self, run: Controlled) -> None:
        self._run = run

    def show(self) -> dict[str, Any]:
        """Return the pipeline as plain data: sources and stages with their rates, every live key, and ``stats``.

        ``stats`` is the state of the run, as in its summary. Addresses of sources are left out, because they may have
        passwords.
        """
        return self.perform(Request("show"), _THIS_PROGRAM)

    def set(self, key: str, value: object) -> dict[str, Any]:
        """Change a live key, such as ``stages.find.every``; return its old and new value.

        Args:
            key: key path, as in ``--set``.
            value: plain data, or text as in ``--set``.

        Raises:
            ConfigError: there is no such key, or it cannot have this value.
            StageError: the key is not live; the error says what the change needs.
        """
        return self.set_keys({key: value})[0]

    def set_keys(self, values: Mapping[str, object]) -> list[dict[str, Any]]:
        """Change several live keys together, each as :meth:`set` does; if one is refused, none changes."""
        texts = (one if isinstance(one, str) else json.dumps(one, default=str) for one in values.values())
        words = tuple(f"{key}={text}" for key, text in zip(values, texts, strict=True))
        made: list[dict[str, Any]] = self.perform(Request("set", words), _THIS_PROGRAM)["changes"]
        return made

    def pause(self, source: str) -> dict[str, Any]:
        """Pause a source: frames of a camera are dropped, and a file waits. Raises StageError: there is none."""
        return self.perform(Request("pause", (source,)), _THIS_PROGRAM)

    def resume(self, source: str) -> dict[str, Any]:
        """Undo :meth:`pause`. Raises StageError: there is no such source."""
        return self.perform(Request("resume", (source,)), _THIS_PROGRAM)

    def add(self, name: str, source: str, like: str = "") -> dict[str, Any]:
        """Add a source, to which every stage that listens to ``like`` then listens too.

        Args:
            name: name of the new stage.
            source: path or address, as in ``source:``.
            like: source whose other keys are copied, where they fit its kind; default: the first one.

        Raises:
            EdgertError: the name exists, the source cannot be made, or no stage can listen to it.
        """
        return self.perform(Request("add", (name, source, *filter(None, [like]))), _THIS_PROGRAM)

    def remove(self, source: str) -> dict[str, Any]:
        """Remove a source after its frames are processed. Raises StageError: there is no such source, or no other."""
        return self.perform(Request("remove", (source,)), _THIS_PROGRAM)

    def apply(self, file: str | Path | Mapping[str, Any], plan: str = "") -> dict[str, Any]:
        """Plan the changes to another pipeline file, or make planned changes.

        The plan has each key that differs, with the effect of its change. It is live, restarts its stage, opens a
        source again, adds or removes one, or needs a restart. Without changes of the last kind the plan can be made.

        Args:
            file: path of the file, or a mapping with the same keys. Paths in it are relative to the running pipeline's
                file. Overrides of the start apply to it too; an overlay does not.
            plan: ``plan`` of an earlier answer, to make its changes; empty: nothing changes.

        Raises:
            ConfigError: the file cannot be read, or has a mistake.
            StageError: the pipeline or the file has changed since the plan was made, or a change needs a restart.
            EdgertError: a change cannot be made, and so none was made.
        """
        text = json.dumps(file, default=str) if isinstance(file, Mapping) else read_file(Path(file))
        return self.perform(Request("apply", (text,), {"plan": plan} if plan else {}), _THIS_PROGRAM)

    def swap(
        self,
        model: str,
        path: str | Path,
        *,
        shadow: int = verbs.SHADOW,
        min_agreement: float = verbs.MIN_AGREEMENT,
        keep: float = verbs.KEEP_S,
    ) -> dict[str, Any]:
        """Begin to swap a model for another file; return the state of the swap, which :meth:`show` has from then on.

        The new model is loaded beside the old one, and runs on some of its frames. When both surely agree, the new one
        takes over. If it then fails, hangs or is too slow, the old one takes over again.

        Args:
            model: name of the model in the pipeline file.
            path: path of the new ONNX file, which must have the same inputs, task and classes.
            shadow: number of frames on which both are compared; 0: the new model takes over at once.
            min_agreement: least agreement of the two models, as ``edgert eval`` would report it, 0 to 1.
            keep: seconds for which the old model stays loaded.

        Raises:
            EdgertError: a swap is under way, or the model cannot be swapped for this file.
        """
        options = {"shadow": str(shadow), "min-agreement": str(min_agreement), "keep": f"{keep}s"}
        return self.perform(Request("swap", (model, str(Path(path).absolute())), options), _THIS_PROGRAM)

    def back(self, model: str) -> dict[str, Any]:
        """Switch back to the old model, or give up a swap that has not switched yet; return its state.

        Raises:
            StageError: the model was not swapped, or the old one is no longer loaded.
        """
        return self.perform(Request("back", (model,)), _THIS_PROGRAM)

    def save(self) -> dict[str, Any]:
        """Write the differences from the pipeline's file to its overlay ``NAME.live.yaml``; the file is not changed.

        The next run loads the overlay after the file. Where nothing differs, an existing overlay is removed, and the
        answer has ``removed: true``.

        Raises:
            StageError: the pipeline has no file.
            ArtifactError: the overlay cannot be written.
        """
        return self.perform(Request("save"), _THIS_PROGRAM)

    def trace(self, path: str | Path, seconds: float = 10.0) -> dict[str, Any]:
        """Record the pipeline's threads for some seconds, or until its end, and write a trace.

        Args:
            path: file to write: ``.pftrace`` for https://ui.perfetto.dev, ``.json`` for Chrome, ``.html`` for a page.
            seconds: length of the trace, at most 60.

        Returns:
            ``path``, ``seconds``, the number of ``events``, and the number of ``lost`` events, for which buffers were
            too small.

        Raises:
            ConfigError: the path has another ending, or ``seconds`` is out of range.
            StageError: another trace is being recorded.
            ArtifactError: the file cannot be written.
        """
        check_trace_path(Path(path))
        recorded = trace_window.record_for(self._run, trace_window.parse_length(f"{seconds}s"))
        write_trace(recorded, Path(path))
        return {**trace_window.describe(recorded), "path": str(path)}

    def traced(self, path: str | Path) -> AbstractContextManager[None]:
        """Record the pipeline's threads during a ``with`` block, and write a trace as :meth:`trace` does.

        The newest 32,768 events of each thread are kept. Works also with a pipeline that is called.
        """
        return trace_window.traced(self._run, Path(path))

    def answer(self, line: bytes, who: str) -> bytes:
        """Perform a request given as a line of JSON, and return the answer as one; see :meth:`perform`."""
        return answer_to(lambda: self.perform(parse_request(line), who))

    def perform(self, request: Request, who: str) -> dict[str, Any]:
        """Perform a request of ``who``, log it, and return the result. Raises EdgertError where it is refused."""
        values, verb = request.values(), VERBS[request.verb]
        operation = partial(_OPERATIONS[request.verb], self._run, *request.words, **values)
        if verb.is_reading or verb.is_long:
            return operation()
        with self._run.changing, SHORT_TURNS:
            began_ns = self._run.clock.now_ns()
            try:
                self._run.check_changeable()
                self._run.shorten_collections()
                result = operation()
            except EdgertError as error:
                self._log(request, began_ns, who, f"refused: {error.what}")
                raise
        self._log(request, began_ns, who, _outcome(request.verb, result))
        return result

    def _log(self, request: Request, began_ns: int, who: str, outcome: str) -> None:
        """Write an operation to the log, and to a trace that is being recorded."""
        named, outcome = _log_line(request), _without_secrets(outcome)
        code = {"code": "control.refused" if outcome.startswith("refused") else "control.done"}
        _LOG.info("%s, by %s: %s", named, who, outcome, extra=code)
        if (recorder := self._run.tracing.recorder) is not None:
            about = {"by": who, "result": outcome}
            recorder.ring().add(("operation", began_ns, recorder.now_ns(), named, "", -1, about))


def _outcome(verb: str, result: Mapping[str, Any]) -> str:
    if verb == "set":
        return ", ".join(f"{one['was']} -> {one['now']}" for one in result["changes"])
    return "begun" if verb == "swap" else "planned" if result.get("applied") is False else "done"


def _log_line(request: Request) -> str:
    """Return a request for the log, without the text of a file and the value of a key, which may be a password."""
    named = VERBS[request.verb].with_names(request.words)
    words = [word.partition("=")[0] if kind == "KEY=VALUE" else word for word, kind in named if kind != "FILE"]
    return _without_secrets(" ".join([request.verb, *words, *map("--{0[0]}={0[1]}".format, request.options.items())]))


def _without_secrets(text: str) -> str:
    """Return a text from outside as one line of bounded length, without passwords in addresses."""
    return " ".join(redact(text).split())[:_LONGEST]


def _show(run: Controlled) -> dict[str, Any]:
    config, state = run.file.config, run.state()
    recent = state.get("recent", {})
    sources, stages = {}, {}
    for name, stage in config.stages.items():
        if name not in run.assembly.ends:  # it is being removed
            continue
        of = state.get("stages", {}).get(name, {})
        rates = recent.get("stages", {}).get(name, {})
        row = {"fps": rates.get("fps"), "frames": of.get("results_out"), "dropped": of.get("dropped")}
        if isinstance(stage, SourceStage):
            sources[name] = {"state": verbs.source_state(run, name, of.get("source") or {}), **row}
        else:
            kind = next(verb for verb in STAGE_VERBS if verb in type(stage).model_fields)
            stages[name] = {"kind": kind, "from": list(flow.inputs_of(stage)), **row}
    about = {"name": config.name, "file": str(run.file.document.path.absolute()), "label": run.label}
    parts = {"sources": sources, "stages": stages, "live": change_plan.live_values(run)}
    swaps = {name: one.state.to_json() for name, one in [*run.swaps.items()]}
    return {**about, **parts, "swaps": swaps, "stats": state}


_OPERATIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "show": _show,
    "set": changing.set_keys,
    "apply": changing.apply_file,
    "pause": verbs.pause,
    "resume": verbs.resume,
    "add": verbs.add,
    "remove": verbs.remove,
    "save": verbs.save,
    "swap": verbs.swap,
    "back": verbs.back,
    "trace": trace_window.trace,
}
"""Verb → function that performs it, given the run, the words of the request, and its options as keywords."""
