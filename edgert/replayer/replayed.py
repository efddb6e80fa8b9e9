"""``edgert replay``: a recorded run is made again, and its results are compared with the recorded ones."""

import math
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
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
from edgert.files import digest_of_file, exists, is_file
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
"""Keys of a source on which stages behind it depend."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of a replay.

    Attributes:
        frames: number of frames that the stages received.
        same, different: numbers of results that are equal to the recorded ones, and that are not.
        missing: number of recorded results whose frames are not in the recording.
        first: first difference; None if there is none.
        notes: sentences on differences between then and now, and on gaps of the recording.
    """

    frames: int
    same: int
    different: int
    missing: int
    first: Difference | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the image."""
        return asdict(replace(self, first=self.first and replace(self.first, image=None)))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a replay.

    Attributes:
        models: model → file that replaces the recorded one; an empty name means the only model.
        window_ns: begin and end of the capture times whose results are compared, by the recorded clock.
        cold_ns: capture time of the first frame that stages receive; earlier frames are ignored.
        within: as for :class:`~edgert.replayer.expectation.Expectation`.
        must_be_exact: whether an engine that is not deterministic bit for bit is an error.
    """

    models: Mapping[str, Path] = field(default_factory=dict)
    window_ns: tuple[float, float] = (-math.inf, math.inf)
    cold_ns: float = -math.inf
    within: float | None = None
    must_be_exact: bool = False


_DEFAULT_OPTIONS = Options()


def replay(recording: str | Path | Recording, options: Options = _DEFAULT_OPTIONS) -> Replay:
    """Run a recording again in this thread, and compare its results.

    Stages begin as at the beginning of the recording and receive every recorded frame, in the recorded order, batches
    and settings. Sinks receive nothing.

    Args:
        recording: path of a file of ``sink: mcap``; or all parts of a run, from :func:`open_recording`.
        options: options of the replay.

    Raises:
        ArtifactError: the file is no recording, is damaged, has no frame, or was made with another model.
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
        functions = self._frame, self._replace, partial(setattr, assembly.choice, "level")
        self._loop = ReplayLoop(assembly.tasks, clock, *functions, recording.failed, recording.settings)
        self._expectation.partial = self._loop.partial
        self._files = dict[str, PipelineFile]()  # task → pipeline file of its last change
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
        if self._swapped:  # results behind the swap cannot be replayed
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

    def _replace(self, task: Task, number: int) -> None:
        """Replace a task's stage or decoder as the recorded run did at an entry."""
        data = next((data for at, data in self._recording.files if at > number), None)
        if data is None:  # the recording ends before the end of the operation
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
"""Longest time after a window's end in which stages may still finish its frames."""


def _pipeline_of(recording: Recording, data: Mapping[str, Any], models: Mapping[str, Path]) -> PipelineFile:
    """Return a recorded pipeline for a replay, with the recording as its source and without sinks.

    Raises:
        ArtifactError: the recorded stages are damaged.
        ConfigError: a file of the pipeline is missing here, or a named model does not exist.
    """
    head, made = recording.head, deepcopy(dict(data))
    stages = made["stages"]
    if head["sink"] not in stages:
        what = f"{recording.paths[0]} holds no pipeline that can be replayed"
        raise ArtifactError(what, why="its stages are damaged")
    made.pop("budgets", None)  # the decisions of a governor are in the recording
    made["stages"] = {}
    for name, stage in stages.items():
        if "source" in stage:
            kept = {key: stage[key] for key in _SOURCE_KEYS if key in stage}
            live = bool(head["sources"].get(name, True))
            source = f"recording:{recording.filled.absolute()}"
            made["stages"][name] = {**kept, "source": source, "options": {"stream": name}, "realtime": live}
        elif name == head["sink"]:
            made["stages"][name] = {"sink": "null", "from": _input_names(stage)}
        elif "sink" not in stage:
            made["stages"][name] = stage
    path = Path(head["path"])
    folder = recording.paths[0].absolute().parent
    path = path if exists(path.parent) else folder / path.name
    for section in (made.get("models") or {}).values():
        _use_moved_files(section, path.parent, folder)
    return _load(made, path, head["models"], models)


def _use_moved_files(section: dict[str, Any], before: Path, folder: Path) -> None:
    """Replace files of a model that are not where they were by those of the same name in ``folder``."""
    named = [(section, "onnx")]
    if isinstance(task := section.get("task"), dict):
        named += [(task, "labels"), (task, "match")]
    for keys, name in named:
        text = str(keys.get(name, ""))
        if not is_file(before / text) and is_file(moved := folder / Path(text).name):
            keys[name] = str(moved)


def _with_past(stages: Mapping[str, StageConfig]) -> Iterable[str]:
    """Yield stages whose records depend on earlier frames: stages with a memory, and all behind them."""
    for name, stage in stages.items():
        if not isinstance(stage, SinkStage) and any(stages[one].has_past for one in (name, *upstream(stages, name))):
            yield name


def _input_names(stage: Mapping[str, Any]) -> list[Any]:
    inputs = stage.get("from") or []
    return [one for one in inputs if isinstance(one, str)] if isinstance(inputs, list | tuple) else [inputs]


def _load(made: dict[str, Any], path: Path, recorded: Mapping[str, Any], models: Mapping[str, Path]) -> PipelineFile:
    sections = made.get("models") or {}
    for name, model in models.items():
        known = [name] if name else list(sections)
        if len(known) != 1 or known[0] not in sections:
            what = f"the recorded pipeline has no model {name!r}" if name else "the name of the model is missing"
            raise ConfigError(what, fix=f"--model NAME=FILE; its models: {', '.join(sections) or 'none'}")
        sections[known[0]]["onnx"] = str(model.absolute())
    for name, about in recorded.items():
        if name in sections:
            same = {key: about[key] for key in ("threads", "replicas") if isinstance(about.get(key), int)}
            sections[name] = {**same, **sections[name]}
    try:
        file = recorded_pipeline(made, path)
    except EdgertError as error:
        error.fix = error.fix or "put the files of the pipeline where they were, or name a model: --model NAME=FILE"
        raise
    exact = all(one.get("is_exact") for one in recorded.values())
    return file if exact else with_default_engines(file)[0]


def _check_models(recording: Recording, file: PipelineFile, options: Options) -> None:
    """Raise ArtifactError if a model differs from the recorded one and no replacement was requested."""
    for name, about in recording.head["models"].items():
        if name in options.models or ("" in options.models and len(recording.head["models"]) == 1):
            continue
        if name not in file.config.models:
            why = "the head of the recording is damaged"
            raise ArtifactError(f"the recorded pipeline has no model {name!r}", why=why)
        path, recorded = file.config.models[name].onnx, str(about.get("sha256", ""))
        here = digest_of_file(path)
        if here != recorded:
            why = f"its SHA-256 was {recorded[:12]}… and is {here[:12]}…" if here else "it is not there"
            fix = f"put the recorded one there, or beside the recording; or use another one: --model {name}={path}"
            raise ArtifactError(f"the recording was made with another model {name!r} than {path}", why=why, fix=fix)


def _check_exact(recording: Recording, assembly: Assembly, options: Options) -> None:
    """Raise StageError if results must be equal bit for bit, but an engine is not deterministic."""
    if not options.must_be_exact or options.within is not None:
        return
    for name, about in recording.head["models"].items():
        engine = assembly.engines.get(name)
        then, now = bool(about.get("is_exact")), engine is not None and is_exact(engine.info)
        if not (then and now):
            why = f"the engine that ran it {'here' if then else 'in the recording'} may round in another way each time"
            fix = "--within 0.01 compares numbers within one hundredth; or record and replay on the processor"
            raise StageError(f"--expect cannot compare bits of model {name!r}", why=why, fix=fix)


# Windows of a recording: by the time of day, or the shortest one that reproduces a difference.

_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_HALF_DAY = timedelta(hours=12)


def window_of(recording: Recording, begin: str | None, length: str | None) -> tuple[float, float]:
    """Return the window of ``--from`` and ``--for``, by the recorded clock.

    Args:
        recording: the recording.
        begin: local time of the day like ``10:02:14``, or a duration after the first frame; None: the first frame.
        length: duration like ``30s``; None: up to the end.

    Raises:
        ConfigError: the text is no time, or the window is outside of the recording.
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
    if begun - at > _HALF_DAY:  # the recording continues after midnight
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
    """The shortest window that reproduces a difference with newly started stages.

    Attributes:
        begin_ns: capture time of its first frame, by the recorded clock.
        frames: number of frames of all streams, up to the one that differs.
        time: time of its first frame.
    """

    begin_ns: int
    frames: int
    seconds: float
    time: str


def shortest_window(recording: Recording, options: Options, first: Difference) -> Shortest | None:
    """Return the shortest window that ends with a difference and reproduces it.

    The number of frames is doubled until the difference appears, then found by bisection. If a difference disappears
    with more frames, the window may be longer than necessary.

    Args:
        recording: the recording.
        options: options with which the difference was found.
        first: the difference.

    Returns:
        The window; None if even all frames do not reproduce the difference.
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
