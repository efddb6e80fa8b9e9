"""``edgert replay``: a recorded run made again, compared with what it gave."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from edgert.assemble import Assembly, Environment, assemble, with_default_engines
from edgert.assemble.recording_head import is_exact, versions
from edgert.clock import rfc3339
from edgert.config import PipelineFile
from edgert.config.flow import upstream
from edgert.config.pipeline_file import recorded_pipeline
from edgert.config.stages import SinkStage, StageConfig
from edgert.errors import ArtifactError, ConfigError, EdgertError, StageError
from edgert.files import digest_of_file
from edgert.memory import Counter
from edgert.recording.recording import Recording, Restart, open_recording
from edgert.replayer.expectation import Difference, Expectation
from edgert.replayer.replay_loop import ReplayClock, ReplayLoop, check_tasks
from edgert.runtime import Frame, Task
from edgert.runtime.decisions import Entry
from edgert.stages.source.recorded_frames import RecordedStream, frame_of
from edgert.steps import code_version
from edgert.units import parse_seconds

_SOURCE_KEYS = ("fps", "priority", "queue", "drop")
"""Keys of a source that stages behind it depend on."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of a replay.

    Attributes:
        frames: given to the stages.
        same, different: results compared with the recorded ones.
        missing: recorded results whose frames are not in the recording.
        first: difference; None where all results are the same.
        notes: what differs between then and now, and what the recording lacks.
    """

    frames: int
    same: int
    different: int
    missing: int
    first: Difference | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, without the image."""
        first = None if self.first is None else asdict(replace(self.first, image=None))
        return {
            **{key: getattr(self, key) for key in ("frames", "same", "different", "missing", "notes")},
            "first": first,
        }


@dataclass(frozen=True, slots=True)
class Options:
    """How a recording is replayed.

    Attributes:
        models: name → file to take in place of the recorded one; an empty name means the only model.
        window_ns: frames whose results are compared, by the recorded clock.
        cold_ns: the first frame that stages get; earlier ones are as if they had not been recorded.
        within: see :class:`~edgert.replayer.expectation.Expectation`.
        must_be_exact: whether an engine that may give other bits is an error.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    window_ns: tuple[float, float] = (-math.inf, math.inf)
    cold_ns: float = -math.inf
    within: float | None = None
    must_be_exact: bool = False


_AS_IT_WAS = Options()


def replay(recording: str | Path | Recording, options: Options = _AS_IT_WAS) -> Replay:
    """Run a recording again in this thread, and compare its results.

    Stages begin as at the beginning of the recording and get every recorded frame, in the recorded order, batches and
    settings. Sinks get nothing.

    Args:
        recording: a file of ``sink: mcap``; or all parts of a run, from :func:`open_recording`.
        options: how.

    Raises:
        ArtifactError: no recording; it is damaged, has no frame, or is of another model.
        EdgertError: the pipeline cannot be made here.
    """
    if not isinstance(recording, Recording):
        recording = open_recording([Path(recording)])
    head, clock = recording.head, ReplayClock(recording.head["offset_ns"])
    file = _pipeline_of(recording, head["pipeline"], options.models)
    _check_models(recording, file, options)
    assembly = assemble(file, environment=Environment(clock=clock, run=head["run"]))
    try:
        _check_exact(recording, assembly, options)
        return _Run(recording, options, file, assembly, clock).result()
    finally:
        assembly.close()


class _Run:
    """One replay."""

    def __init__(
        self, recording: Recording, options: Options, file: PipelineFile, assembly: Assembly, clock: ReplayClock
    ) -> None:
        self._recording, self._options, self._file, self._assembly = recording, options, file, assembly
        head, stages = recording.head, file.config.stages
        removed = [name for name in head["tasks"] if name.partition(":")[0] not in stages]
        check_tasks(head["tasks"], assembly.tasks, removed)
        self._unknown = None if recording.is_complete else frozenset(_with_past(stages))
        self._expectation = Expectation(clock, options.window_ns, options.within, self._unknown)
        assembly.task(head["sink"]).stage = self._expectation
        counter = Counter()
        self._streams = {stream: RecordedStream(stream, counter) for stream in recording.frames}
        act = self._frame, self._replace, self._choose
        self._loop = ReplayLoop(assembly.tasks, clock, *act, recording.failed, recording.settings)
        self._expectation.partial = self._loop.partial
        self._files = dict[str, PipelineFile]()  # by task, those that a change of it made
        self._frames, self._swapped = 0, ""

    def result(self) -> Replay:
        recording, loop, expectation = self._recording, self._loop, self._expectation
        try:
            loop.open()
            for event in recording.events():
                if isinstance(event, Entry):
                    loop.act(event)
                    is_past = event.kind == "give" and event.more[0] >= self._options.window_ns[1] + _PAST_NS
                    if is_past or self._swapped:
                        break
                elif isinstance(event, dict):
                    expectation.expect(event)
                elif (stream := self._streams.get(event.stream)) is not None:
                    if isinstance(event, Restart):
                        stream.restart(event)
                    else:
                        stream.add(event)
        finally:
            loop.close()
            for stream in self._streams.values():
                stream.close()
        if self._swapped:  # what was recorded behind it cannot be made
            expectation.forget()
        missing = expectation.finish(loop.missing, loop.errors)
        counts = self._frames, expectation.same, expectation.different, missing
        return Replay(*counts, expectation.first, tuple(self._notes()))

    def _frame(self, entry: Entry) -> Frame | None:
        stream = self._streams[entry.stream]
        image = stream.image(entry.more[-1])
        if image is None:
            return None
        if entry.more[0] < self._options.cold_ns:
            image.lease.release()
            return None
        self._frames += 1
        return frame_of(entry, image)

    def _choose(self, level: int) -> None:
        self._assembly.choice.level = level

    def _replace(self, task: Task, number: int) -> None:
        """Make a task's stage, or decoders, as the pipeline had them from an entry on."""
        data = next((data for at, data in self._recording.files if at > number), None)
        if data is None:  # the recording ends before the operation did
            return
        file = _pipeline_of(self._recording, data, self._options.models)
        name, assembly = task.name.partition(":")[0], self._assembly
        before = self._files.get(task.name, self._file)
        self._files[task.name] = file
        model: str | None = getattr(file.config.stages[name], "infer", None)
        if model is not None:
            if file.config.models[model].onnx != before.config.models[model].onnx:
                self._swapped = model
            for one, another in assembly.readers(file, model):
                if one is task:
                    another(file.config.models[model].task)()
        else:
            assert assembly.make is not None
            stage: Any = assembly.make(file, name)
            stage.open()
            task.stage.close()
            task.stage = stage

    def _notes(self) -> Iterable[str]:
        recording, head, loop = self._recording, self._recording.head, self._loop
        now = {"edgert": code_version(), **versions()}
        then = {"edgert": head.get("edgert"), **head["packages"]}
        for name, version in then.items():
            if now.get(name) != version:
                yield f"recorded with {name} {version}, replayed with {now.get(name) or 'none'}"
        if self._unknown is not None:
            past = f": {', '.join(sorted(self._unknown))} have no past here, and are not compared"
            yield f"it begins in the middle of a run{past if self._unknown else ''}"
        for path, damage in zip(recording.paths, recording.damages, strict=True):
            if str(damage):
                yield f"{path}: {damage}"
        if recording.lost:
            yield f"the recorder had no room for {recording.lost} decisions or results; what follows may differ"
        if loop.missing and self._options.cold_ns == -math.inf:
            yield f"{len(loop.missing)} frames are not in the recording"
        if self._expectation.unrecorded:
            yield f"{self._expectation.unrecorded} results of the replay are not in the recording"
        if self._swapped:
            yield f"model {self._swapped!r} was swapped while it was recorded: results are compared up to there"
        if loop.batches and self._unknown is None:
            yield f"{loop.batches} batches came out in another size than recorded"


_PAST_NS = 5_000_000_000
"""Stages may give out results of a window's frames so long after its end."""


def _pipeline_of(recording: Recording, data: Mapping[str, Any], models: Mapping[str, Path]) -> PipelineFile:
    """Return a recorded pipeline as it is replayed: its sources are the recording's, and it has no sinks.

    Raises:
        ConfigError: a file of it is missing here; or a model is named that it does not have.
    """
    head, made = recording.head, deepcopy(dict(data))
    stages = made["stages"]
    if head["sink"] not in stages:
        raise ArtifactError(
            f"{recording.paths[0]} holds no pipeline that can be replayed", why="its stages are damaged"
        )
    made.pop("budgets", None)  # what a governor decided was recorded
    made["stages"] = {}
    for name, stage in stages.items():
        if "source" in stage:
            kept = {key: stage[key] for key in _SOURCE_KEYS if key in stage}
            live = bool(head["sources"].get(name, True))
            source = f"recording:{recording.filled.absolute()}"
            made["stages"][name] = {**kept, "source": source, "options": {"stream": name}, "realtime": live}
        elif name == head["sink"]:
            made["stages"][name] = {"sink": "null", "from": _listed(stage)}
        elif "sink" not in stage:
            made["stages"][name] = stage
    path = Path(head["path"])
    path = path if path.parent.is_dir() else recording.paths[0].absolute().parent / path.name
    return _loaded(made, path, head["models"], models)


def _with_past(stages: Mapping[str, StageConfig]) -> Iterable[str]:
    """Yield the stages whose records depend on frames before: those that remember some, and all behind them."""
    for name, stage in stages.items():
        if not isinstance(stage, SinkStage) and any(stages[one].has_past for one in (name, *upstream(stages, name))):
            yield name


def _listed(stage: Mapping[str, Any]) -> list[Any]:
    inputs = stage.get("from") or []
    return [one for one in inputs if isinstance(one, str)] if isinstance(inputs, list | tuple) else [inputs]


def _loaded(made: dict[str, Any], path: Path, recorded: Mapping[str, Any], models: Mapping[str, Path]) -> PipelineFile:
    sections = made.get("models") or {}
    for name, model in models.items():
        known = [name] if name else list(sections)
        if len(known) != 1 or known[0] not in sections:
            what = f"the recorded pipeline has no model {name!r}" if name else "which model?"
            raise ConfigError(what, fix=f"--model NAME=FILE; its models: {', '.join(sections) or 'none'}")
        sections[known[0]]["onnx"] = str(model.absolute())
    for name, about in recorded.items():
        if name in sections:
            alike = {key: about[key] for key in ("threads", "replicas") if isinstance(about.get(key), int)}
            sections[name] = {**alike, **sections[name]}
    try:
        file = recorded_pipeline(made, path)
    except EdgertError as error:
        error.fix = error.fix or "put the files of the pipeline where they were, or name a model: --model NAME=FILE"
        raise
    exact = all(one.get("is_exact") for one in recorded.values())
    return file if exact else with_default_engines(file)[0]


def _check_models(recording: Recording, file: PipelineFile, options: Options) -> None:
    """Raise ArtifactError where a model is not the recorded one, and nobody asked for another."""
    for name, about in recording.head["models"].items():
        if name in options.models or ("" in options.models and len(recording.head["models"]) == 1):
            continue
        if name not in file.config.models:
            raise ArtifactError(
                f"the recorded pipeline has no model {name!r}", why="the head of the recording is damaged"
            )
        path, recorded = file.config.models[name].onnx, str(about.get("sha256", ""))
        here = digest_of_file(path)
        if here != recorded:
            why = f"its SHA-256 was {recorded[:12]}… and is {here[:12]}…" if here else "it is not there"
            raise ArtifactError(
                f"the recording was made with another model {name!r} than {path}",
                why=why,
                fix=f"put the recorded one there; or see what another gives: --model {name}={path}",
            )


def _check_exact(recording: Recording, assembly: Assembly, options: Options) -> None:
    """Raise StageError where results are to be the same bits, and an engine does not promise that."""
    if not options.must_be_exact or options.within is not None:
        return
    for name, about in recording.head["models"].items():
        engine = assembly.engines.get(name)
        then, now = bool(about.get("is_exact")), engine is not None and is_exact(engine.info)
        if not (then and now):
            which = "here" if then else "in the recording"
            raise StageError(
                f"--expect cannot compare bits of model {name!r}",
                why=f"the engine that ran it {which} may round in another way each time",
                fix="--within 0.01 compares numbers within one hundredth; or record and replay on the processor",
            )


# Windows of a recording: by the time of day, or the shortest one that still shows a difference.

_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_HALF_DAY = timedelta(hours=12)


def window_of(recording: Recording, begin: str | None, length: str | None) -> tuple[float, float]:
    """Return the window of ``--from`` and ``--for``, by the recorded clock.

    Args:
        recording: of the run.
        begin: a time of the day on this machine, like ``10:02:14``, or seconds after the first frame; None: the first.
        length: like ``30s``; None: up to the end.

    Raises:
        ConfigError: no time, or one outside of the recording.
    """
    first_ns, last_ns = recording.span_ns
    begin_ns = first_ns if begin is None else _time_ns(recording, begin)
    end_ns = float("inf") if length is None else begin_ns + _seconds(length, "--for") * 1e9
    if end_ns <= begin_ns:
        raise ConfigError(f"--for {length}: expected more than 0 s")
    if not (begin_ns <= last_ns and end_ns > first_ns):
        offset_ns = recording.head["offset_ns"]
        span = f"{_local(first_ns + offset_ns)} to {_local(last_ns + offset_ns)}"
        raise ConfigError(f"--from {begin} is outside of the recording", why=f"it lasts from {span}, local time")
    return begin_ns, end_ns


def _time_ns(recording: Recording, text: str) -> float:
    first_ns, offset_ns = recording.span_ns[0], recording.head["offset_ns"]
    match = _TIME.fullmatch(text)
    if match is None:
        return first_ns + _seconds(text, "--from") * 1e9
    begun = datetime.fromtimestamp((first_ns + offset_ns) / 1e9)
    hours, minutes, seconds = int(match[1]), int(match[2]), float(match[3] or 0)
    if hours > 23 or minutes > 59:
        raise ConfigError(f"--from {text} is no time of the day")
    midnight = begun.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if begun - at > _HALF_DAY:  # a recording that goes on after midnight
        at += timedelta(days=1)
    return at.timestamp() * 1e9 - float(offset_ns)


def _seconds(text: str, option: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}", fix="write 10:02:14, 90s or 1.5m") from error


def _local(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Shortest:
    """The shortest window whose replay, with stages that begin without a past, shows a difference.

    Attributes:
        begin_ns: of its first frame, by the recorded clock.
        frames: in it, up to the one that differs, of all streams.
        seconds: that it lasts.
        time: of its first frame.
    """

    begin_ns: int
    frames: int
    seconds: float
    time: str


def shortest_window(recording: Recording, options: Options, first: Difference) -> Shortest | None:
    """Return the shortest window that ends with a difference and still gives the same wrong record.

    Twice as many frames are tried each time, then the number is halved. A difference that comes and goes with the
    number of frames may be found in a longer window than the shortest.

    Args:
        recording: of the run.
        options: by which the difference was found.
        first: the difference.

    Returns:
        The window; None where not even all frames show the difference.
    """
    times = sorted(
        event.more[0]
        for event in recording.events()
        if isinstance(event, Entry) and event.kind == "give" and event.more[0] <= first.timestamp_ns
    )
    only = replace(options, window_ns=(first.timestamp_ns, first.timestamp_ns + 1))

    def shows(count: int) -> bool:
        found = replay(recording, replace(only, cold_ns=times[-count])).first
        wanted = first.stage, first.digest, first.where
        return found is not None and (found.stage, found.digest, found.where) == wanted

    failing, count = 0, 1
    while not shows(count):
        if count == len(times):
            return None
        failing, count = count, min(2 * count, len(times))
    while count - failing > 1:
        middle = (failing + count) // 2
        failing, count = (failing, middle) if shows(middle) else (middle, count)
    begin_ns = times[-count]
    time = rfc3339(begin_ns + recording.head["offset_ns"])
    return Shortest(begin_ns, count, (first.timestamp_ns - begin_ns) / 1e9, time)
