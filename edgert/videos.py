"""Videos of a ``videos:`` source: a pipeline for each, and a journal of finished videos."""

import glob
import hashlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from edgert import files, user_code
from edgert._version import __version__
from edgert.config import PipelineFile
from edgert.config.stages import SourceStage, StageConfig
from edgert.errors import ConfigError, cause
from edgert.stages.kinds import FileSink
from edgert.stages.sink.output_file import cannot_write, written_elsewhere
from edgert.stages.sink.retention import fixed_folder, has_field, matching_files, safe_name
from edgert.stages.source.files import VIDEO_SUFFIXES, videos_at
from edgert.stages.source.kinds import kind_of, videos_pattern

_LOG = logging.getLogger(__name__)
_FIELD = "{file}"


@dataclass(frozen=True, slots=True)
class Video:
    """One video and the pipeline that plays it.

    ``name`` is the value of ``{file}``: the file name without its suffix, preceded by folders where two videos share a
    name. ``outputs`` are the paths of the sinks, which may still contain other fields.
    """

    path: Path
    name: str
    file: PipelineFile
    outputs: tuple[Path, ...]


def videos_of(file: PipelineFile) -> list[Video]:
    """Return the videos of a pipeline in playing order; an empty list without a ``videos:`` source.

    Raises ConfigError for another source, or a sink with a wrong path; StageError where no video matches.
    """
    source = _source_of(file)
    _check_fields(file, source)
    if source is None:
        return []
    section = file.config.stages[source]
    assert isinstance(section, SourceStage)
    paths = videos_at(videos_pattern(section, file.document.path.parent), file.where("stages", source, "source"))
    if len(paths) > 1:
        _check_separate_outputs(file)
    _check_not_among_inputs(file, videos_pattern(section, file.document.path.parent), paths)
    videos = []
    for path, name in zip(paths, _unique_names(paths), strict=True):
        single = section.model_copy(update={"source": f"videos:{glob.escape(str(path))}"})
        own_file = _with_video_name(file, name, {source: single})
        videos.append(Video(path, name, own_file, _file_outputs(own_file)))
    return videos


def _file_outputs(file: PipelineFile) -> tuple[Path, ...]:
    sinks = (stage.path for stage in file.config.stages.values() if isinstance(stage, FileSink))
    return tuple(path for path in sinks if not is_stream(path))


def with_first_video(file: PipelineFile) -> PipelineFile:
    """Return a pipeline of several videos with the name of the first in its paths, for checks; others unchanged."""
    videos = videos_of(file)
    return _with_video_name(file, videos[0].name, {}) if videos else file


def only_video(file: PipelineFile) -> PipelineFile:
    """Return the pipeline of the only video, or without a ``videos:`` source. Raises ConfigError: it plays several."""
    videos = videos_of(file)
    if len(videos) > 1:
        raise ConfigError(
            f"a Pipeline plays one video, not {len(videos)}",
            why=f"{videos[0].path.name} is the first of those that its source names",
            where=str(file.document.path),
            fix="edgert.run_videos(FILE), or edgert run FILE, plays one after another",
        )
    return videos[0].file if videos else file


def _source_of(file: PipelineFile) -> str | None:
    """Return the name of the ``videos:`` stage; None without one. Raises ConfigError if there is another source."""
    folder = file.document.path.parent
    sources = {name: one for name, one in file.config.stages.items() if isinstance(one, SourceStage)}
    source = next((name for name, one in sources.items() if kind_of(one.source, folder) == "videos"), None)
    if source is not None and len(sources) > 1:
        others = ", ".join(name for name in sources if name != source)
        raise ConfigError(
            f"stage {source!r} plays videos beside another source: {others}",
            why="a pipeline of several videos is run once for each",
            where=file.where("stages", source, "source"),
            fix="write another pipeline file for them, or one stage for each video",
        )
    return source


def _check_fields(file: PipelineFile, source: str | None) -> None:
    """Raise ConfigError for ``{file}`` in a path where no source plays videos."""
    for name, stage in file.config.stages.items():
        if source is None and isinstance(stage, FileSink) and has_field(stage.path, "file"):
            raise ConfigError(
                f"{stage.path}: {_FIELD} has no value",
                why="no source plays videos",
                where=file.where("stages", name, "path"),
                fix='source: "videos:FOLDER/*.mp4", or {stream} in path',
            )


def _check_separate_outputs(file: PipelineFile) -> None:
    """Raise ConfigError for a sink that would write the results of several videos into one file."""
    for name, stage in file.config.stages.items():
        if isinstance(stage, FileSink) and not is_stream(stage.path) and not has_field(stage.path, "file"):
            suffix = stage.path.suffix if stage.sink != "images" else ""
            raise ConfigError(
                f"{str(stage.path)!r} does not name the video",
                why="each video would replace the results of the one before",
                where=file.where("stages", name, "path"),
                fix=f'path: "out/{_FIELD}{suffix}"',
            )


def _check_not_among_inputs(file: PipelineFile, pattern: Path, paths: Sequence[Path]) -> None:
    """Raise ConfigError for a sink whose videos the next run would read as input."""
    folders = {path.parent.resolve() for path in paths}
    for name, stage in file.config.stages.items():
        if not isinstance(stage, FileSink) or stage.path.suffix.lower() not in VIDEO_SUFFIXES:
            continue
        folder = fixed_folder(stage.path.absolute()).resolve()
        is_beside = any(one == folder or ("**" in str(pattern) and one in folder.parents) for one in folders)
        if is_beside and (pattern.is_dir() or fnmatch(stage.path.name, pattern.name)):
            raise ConfigError(
                f"{str(stage.path)!r} lies among the videos that are read",
                why="the next run would read what this one writes",
                where=file.where("stages", name, "path"),
                fix="write the outputs to another folder",
            )


def is_stream(path: Path) -> bool:
    """Return whether a path is a pipe or a device, to which the results of all videos are written in turn."""
    return files.exists(path) and not (path.is_file() or path.is_dir())


def _with_video_name(file: PipelineFile, name: str, changed: Mapping[str, StageConfig]) -> PipelineFile:
    stages = {**file.config.stages, **changed}
    for stage, section in stages.items():
        if isinstance(section, FileSink):
            path = section.path
            if section.sink == "images" and not path.suffix:  # the name of a video may look like a suffix
                path /= "{stream}_{frame:06d}.jpg"
            stages[stage] = section.model_copy(update={"path": Path(str(path).replace(_FIELD, name))})
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


def _unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path, distinct even on file systems that ignore case."""
    folder = os.path.commonpath([path.parent for path in paths])
    relative = [path.relative_to(folder) for path in paths]
    forms = [[safe_name(path.stem) for path in paths]]
    forms += [
        [safe_name(path.with_suffix("").as_posix()) for path in relative],
        [safe_name(path.as_posix()) for path in relative],
    ]
    names, taken = [""] * len(paths), set[str]()
    for form in forms:
        counts = Counter(one.casefold() for one, name in zip(form, names, strict=True) if not name)
        for at, one in enumerate(form):
            if not names[at] and counts[one.casefold()] == 1 and one.casefold() not in taken:
                names[at] = one
                taken.add(one.casefold())
    for at, one in enumerate(forms[0]):
        number = 2
        while not names[at]:
            if (wanted := f"{one}_{number}").casefold() not in taken:
                names[at] = wanted
                taken.add(wanted.casefold())
            number += 1
    return names


class Journal:
    """Thread-safe record of finished videos, in a file beside the outputs.

    A video counts as done while its file, the pipeline and its models are unchanged, and its outputs exist. Outputs of
    an unfinished video are removed before it is played again. A line is added for each change; the file is rewritten at
    the start of a run, during which ``lock_path`` exists beside it.
    """

    def __init__(self, file: PipelineFile, videos: Sequence[Video]) -> None:
        self._videos, self._lock = videos, threading.Lock()
        outputs, pipeline = _file_outputs(file), file.document.path
        folder = fixed_folder(outputs[0]) if outputs else pipeline.parent
        self.path = folder / f".{safe_name(pipeline.stem)}.videos.json"
        self.lock_path = self.path.absolute().with_suffix(".lock")
        self._streams = [name for name, stage in file.config.stages.items() if isinstance(stage, SourceStage)]
        self._digest = _digest(file)
        self._entries: dict[str, dict[str, Any]] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the journal for one run. Raises StageError if it cannot be written, or another run holds it."""
        path = self.lock_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot_write(path, error, "") from error
        try:
            if not files.try_lock(descriptor):
                raise written_elsewhere(path, "")
            try:
                self._read()
                lines = [json.dumps({"pipeline": self._digest}), *map(_line, self._entries.items())]
                files.replace_text(self.path, "\n".join(lines) + "\n")
                yield
            finally:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def is_done(self, video: Video) -> bool:
        """Return whether a video is finished and its outputs still exist."""
        entry = self._entries.get(str(video.path))
        if entry is None or entry.get("state") != "done" or entry.get("identity") != _identity(video.path):
            return False
        return all(files.exists(Path(one)) for one in entry.get("written", ()))

    def begin(self, video: Video) -> None:
        """Remove outputs of an earlier attempt, and note that a video is being played."""
        with self._lock:
            self._remove_outputs(video)
            before = {str(path): size for path, size in self._outputs(video).items()}
            self._write(video, {"state": "begun", "identity": _identity(video.path), "before": before})

    def end(self, video: Video, *, is_done: bool) -> None:
        """Note whether a video is done or must be played again."""
        with self._lock:
            entry = self._entries[str(video.path)]
            written = [str(path) for path in self._outputs(video)]
            del entry["state"]
            done = {"state": "done", "identity": entry["identity"], "written": written}
            self._write(video, done if is_done else {"state": "failed", **entry})

    def undo(self, video: Video) -> None:
        """Remove the outputs of a video that was not played to its end."""
        with self._lock:
            self._remove_outputs(video)
            self._write(video, {"state": "undone"})

    def _remove_outputs(self, video: Video) -> None:
        entry = self._entries.get(str(video.path))
        if entry is None or entry.get("state") not in ("begun", "failed"):
            return
        before, appended = entry.get("before", {}), _appended_outputs(video)
        for path in self._outputs(video):
            try:
                if str(path) not in before or path not in appended:
                    path.unlink(missing_ok=True)
                else:  # keep the lines of earlier runs
                    os.truncate(path, min(before[str(path)], path.stat().st_size))
            except OSError as error:
                _LOG.warning("%s keeps results of a run of %s that did not end: %s", path, video.path, cause(error))

    def _outputs(self, video: Video) -> dict[Path, int]:
        """Return path → bytes of a video's existing outputs."""
        found = self._matching_outputs(video)
        for other in self._videos:  # outputs of clip-2.mp4 look like further files of clip.mp4
            if found and other.name.startswith(f"{video.name}-"):
                found = {path: size for path, size in found.items() if path not in self._matching_outputs(other)}
        return found

    def _matching_outputs(self, video: Video) -> dict[Path, int]:
        return {path: size for one in video.outputs for path, size in matching_files(one, self._streams).items()}

    def _read(self) -> None:
        self._entries = {}
        if not self.path.is_file():
            return
        try:
            first, *lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        except OSError as error:
            raise cannot_write(self.path, error, "") from error
        if _parse_line(first).get("pipeline") != self._digest:  # it changed, so all videos are played again
            return
        for entry in map(_parse_line, lines):  # the last line may be incomplete
            if isinstance(path := entry.pop("path", None), str) and entry.get("state") != "undone":
                self._entries[path] = entry
            elif isinstance(path, str):
                self._entries.pop(path, None)

    def _write(self, video: Video, entry: dict[str, Any]) -> None:
        self._entries[str(video.path)] = entry
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line((str(video.path), entry)) + "\n")
                file.flush()
                os.fdatasync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error, "") from error


def _line(entry: tuple[str, Mapping[str, Any]]) -> str:
    return json.dumps({"path": entry[0], **entry[1]})


def _parse_line(line: str) -> dict[str, Any]:
    """Return the content of a line of the journal; an empty dict for a damaged line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _appended_outputs(video: Video) -> set[Path]:
    """Return the outputs of sinks that append to existing files."""
    stages = video.file.config.stages.values()
    keeping = [one.path for one in stages if isinstance(one, FileSink) and one.existing == "keep"]
    return {path.resolve() for path in keeping} | set(keeping)


def _identity(path: Path) -> list[int]:
    """Return size and time of change of a file; an empty list where it cannot be read."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_size, found.st_mtime_ns]


def files_read(file: PipelineFile) -> list[Path]:
    """Return the files that a pipeline needs: models, operators, and the user's code."""
    config, folder = file.config, file.document.path.parent
    read = [model.onnx for model in config.models.values()] + list(config.ops)
    return read + [path for spec in config.code.values() for path in user_code.code_name(spec, "", folder).files]


def _digest(file: PipelineFile) -> str:
    """Return a digest of the pipeline, its models and the user's code, independent of the videos."""
    config = file.config
    plain = config.model_dump(mode="json")
    for stage in plain["stages"].values():
        stage.pop("source", None)
    identities = {str(path): _identity(path) for path in files_read(file)}
    content = json.dumps([__version__, plain, identities], sort_keys=True, default=str)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
