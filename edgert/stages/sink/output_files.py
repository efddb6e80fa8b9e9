"""The output files of a sink, one after another: their names, their rotation, and the removal of old ones.

Folders are not listed for each frame: a sink lists its own once, and remembers the files.
"""

import heapq
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import StageError, cause, nearest
from edgert.stages.sink.output_file import DISK, OutputFile, cannot_write, try_lock
from edgert.units import format_bytes

log = logging.getLogger("edgert.sink")

_CLOSE_S = 0.5  # part of the 2 s in which a pipeline ends
_REMOVAL_PERIOD_S = 1.0
_SHORT_S = 10.0
"""Seconds that other sinks have to make room, before too little free space is an error."""
_MAX_REMOVALS = 1000  # files removed at a time, so that frames do not wait long
_MAX_REMEMBERED = 10_000  # oldest files that are remembered; after these, the folder is listed again
CLOCK_WAS_SET = 1_577_836_800  # 2020; earlier dates come from a board whose clock was not set yet
_LONGEST_LINE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for the files of one sink; 0 is no limit.

    Attributes:
        keeps: whether files of earlier runs are kept, not replaced.
        endless: whether frames may come for ever, so that nothing may be stored for each frame.
        rotate_bytes: maximum size of a file; the next one begins before it would be exceeded.
        rotate_s: maximum age of a file; the next one begins then.
        keep_s: maximum age of finished files; older ones are removed.
        keep_bytes: maximum size of all files of the sink; the oldest are removed beyond it.
        free_bytes: free space on the disk below which the oldest files are removed.
    """

    keeps: bool = False
    endless: bool = False
    rotate_bytes: int = 0
    rotate_s: float = 0.0
    keep_s: float = 0.0
    keep_bytes: int = 0
    free_bytes: int = 0

    @property
    def rotates(self) -> bool:
        """Whether files may end before the run ends."""
        return bool(self.rotate_bytes or self.rotate_s)

    @property
    def removes(self) -> bool:
        """Whether old files are removed."""
        return bool(self.keep_s or self.keep_bytes or self.free_bytes)


REPLACED = Rules()
"""Rules by which every run replaces the files of the last, without rotation or removal."""

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_WIDTH = re.compile(r"0?[1-9]?d?")
_UNSAFE = re.compile(r"[^\w.\-]|^\.")
_DATE, _TIME = "%Y-%m-%d", "%H%M%S"
_MATCHES = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d{6}", "frame": r" *\d+"}
_SUFFIX = r"(?:-\d{4}-\d\d-\d\d-\d{6})?(?:-\d+)?"
"""Date and number that are appended to the name of a file that was there before."""


def check_pattern(pattern: Path, fields: tuple[str, ...], where: str) -> None:
    """Raise StageError for a ``{field}`` of a pattern that is not among ``fields``, or has a wrong format."""
    for name, spec in _FIELD.findall(str(pattern)):
        if name not in fields:
            what = f"{pattern} has an unknown field {{{name}}}{nearest(name, fields)}"
            raise StageError(what, where=where, fix="known: " + ", ".join(f"{{{field}}}" for field in fields))
        if spec and (name != "frame" or not _WIDTH.fullmatch(spec)):
            what = f"{pattern}: cannot format {{{name}:{spec}}}"
            raise StageError(what, where=where, fix="write {frame:06d} or {stream}")


def fill(pattern: Path, stream: str, frame: int = 0) -> Path:
    """Fill ``{stream}``, ``{frame}`` or ``{frame:06d}``, ``{date}`` and ``{time}`` into a pattern.

    Date and time are the present ones, in the machine's time zone.
    """
    now = time.localtime()

    def value(match: re.Match[str]) -> str:
        name, spec = match.groups()
        if name in ("date", "time"):
            return time.strftime(_DATE if name == "date" else _TIME, now)
        return safe_name(stream) if name == "stream" else format(frame, spec or "")

    return Path(_FIELD.sub(value, str(pattern)))


def safe_name(text: str) -> str:
    """Return a text as part of a file name: other signs than letters, digits, ``.``, ``-`` and ``_`` become ``_``."""
    return _UNSAFE.sub("_", text)


def has_field(pattern: Path, *names: str) -> bool:
    """Return whether ``pattern`` contains one of these fields."""
    return any(found in names for found, _ in _FIELD.findall(str(pattern)))


def numbered_path(path: Path, number: int) -> Path:
    """Return ``out-2.mp4`` for ``out.mp4`` and 2; the path itself for 1."""
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def fixed_folder(pattern: Path) -> Path:
    """Return the deepest folder of a pattern without a field."""
    folder = pattern.parent
    while _FIELD.search(str(folder)):
        folder = folder.parent
    return folder


def make_parent(path: Path, where: str) -> None:
    """Create the folder of ``path``. Raises StageError when that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StageError(f"cannot make the folder {path.parent}", why=cause(error), where=where) from error


@dataclass(frozen=True, slots=True, order=True)
class _FinishedFile:
    """A finished file; ``at_s`` is when it was finished, by the monotonic clock."""

    at_s: float
    path: str
    size_bytes: int


class Retention:
    """Remover of a pattern's oldest files, by the rules of the sink. For use in one thread.

    Files that are being written stay, and those of streams that are not in this run.
    """

    def __init__(self, pattern: Path, rules: Rules, where: str) -> None:
        self._pattern, self._rules, self._where = pattern, rules, where
        self._root = fixed_folder(pattern)
        self._streams = set[str]()
        self._oldest, self._is_complete, self._size_bytes = deque[_FinishedFile](), False, 0
        self._next_s, self._short_s, self._has_warned = 0.0, math.inf, False
        self._start_s, self._start_date_s = time.monotonic(), time.time()

    def add_stream(self, stream: str) -> None:
        """Include the files of a stream."""
        if stream not in self._streams:
            self._streams.add(stream)
            self._oldest.clear()
            self._is_complete, self._next_s = False, 0.0

    def add(self, path: Path, size_bytes: int) -> None:
        """Include a finished file."""
        self._size_bytes += size_bytes
        if self._is_complete and len(self._oldest) < 2 * _MAX_REMEMBERED:
            self._oldest.append(_FinishedFile(time.monotonic(), str(path), size_bytes))
        else:
            self._is_complete = False

    def remove_old(self, unfinished: Sequence[OutputFile] = ()) -> None:
        """Remove old files by the rules, at most once a second.

        Args:
            unfinished: files that are being written, whose sizes count.

        Raises:
            StageError: too little space is free, and no file is left to remove.
        """
        now_s = time.monotonic()
        if not self._rules.removes or now_s < self._next_s:
            return
        self._next_s = now_s + _REMOVAL_PERIOD_S
        own = {str(file.path): file.size_bytes for file in unfinished}
        for _ in range(_MAX_REMOVALS):
            if not self._oldest and not self._is_complete:
                self._list_files(own)
            if not self._oldest or not self._is_too_much(now_s, sum(own.values())):
                break
            self._remove()
        else:
            self._next_s = now_s
        free_bytes = math.inf if self._oldest else self._free_bytes()
        self._short_s = min(self._short_s, now_s) if free_bytes < self._rules.free_bytes else math.inf
        if now_s - self._short_s > _SHORT_S:
            raise StageError(
                f"only {format_bytes(free_bytes)} are free for {self._pattern}",
                why=f"keep.free is {format_bytes(self._rules.free_bytes)}, and no older file is left to remove",
                where=self._where,
                fix="free some space, or lower keep.free",
            )

    def make_room(self) -> bool:
        """Remove the oldest file, because the disk is full; return whether there was one."""
        if self._rules.removes and not self._oldest and not self._is_complete:
            self._list_files({})
        while self._rules.removes and self._oldest:
            if self._remove():
                return True
        return False

    def _is_too_much(self, now_s: float, written_bytes: int) -> bool:
        rules = self._rules
        return bool(
            (rules.keep_s and now_s - self._oldest[0].at_s > rules.keep_s)
            or (rules.keep_bytes and self._size_bytes + written_bytes > rules.keep_bytes)
            or self._free_bytes() < rules.free_bytes
        )

    def _free_bytes(self) -> float:
        """Return the free space of the disk; infinity where no rule limits it, or the disk does not say."""
        with suppress(OSError):
            if self._rules.free_bytes:
                disk = os.statvfs(self._root)
                return disk.f_bavail * disk.f_frsize
        return math.inf

    def _list_files(self, own: dict[str, int]) -> None:
        """List the folders again, to find the oldest files and the total size; leave out the files ``own``."""
        self._size_bytes, count = 0, 0

        def found() -> Iterator[_FinishedFile]:
            nonlocal count
            for entry in self._matching_entries(str(self._root), self._expressions()):
                with suppress(FileNotFoundError):
                    file = entry.stat(follow_symlinks=False)
                    if entry.path not in own:
                        count += 1
                        self._size_bytes += file.st_size
                        yield _FinishedFile(self._finished_s(file.st_mtime), entry.path, file.st_size)

        self._oldest = deque(heapq.nsmallest(_MAX_REMEMBERED, found()))
        self._is_complete = count == len(self._oldest)

    def matching_files(self) -> dict[Path, int]:
        """List the folders; return the files of the pattern, with their sizes in bytes."""
        found = {}
        for entry in self._matching_entries(str(self._root), self._expressions()):
            with suppress(FileNotFoundError):
                found[Path(entry.path)] = entry.stat(follow_symlinks=False).st_size
        return found

    def remove_empty(self) -> None:
        """Remove empty files, which processes leave that were killed before their first images."""
        for path, size_bytes in self.matching_files().items():
            if not size_bytes:
                self._unlink(path, is_empty=True)

    def _finished_s(self, date_s: float) -> float:
        """Return a file's date as a time of the monotonic clock.

        Files do not become old because the time of day was set during the run, or had not been set when they were
        written.
        """
        now_s, passed_s = time.monotonic(), time.monotonic() - self._start_s
        if self._start_date_s <= date_s <= self._start_date_s + passed_s:
            return self._start_s + date_s - self._start_date_s
        if date_s < CLOCK_WAS_SET:
            return self._start_s + (date_s - CLOCK_WAS_SET) * 1e-9  # oldest first, and as old as the run
        return now_s - max(0.0, time.time() - date_s)

    def _matching_entries(self, folder: str, expressions: list[re.Pattern[str]]) -> Iterator["os.DirEntry[str]"]:
        first, *rest = expressions
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                if not first.fullmatch(entry.name):
                    continue
                if rest and entry.is_dir(follow_symlinks=False):
                    yield from self._matching_entries(entry.path, rest)
                elif not rest and entry.is_file(follow_symlinks=False):
                    yield entry

    def _expressions(self) -> list[re.Pattern[str]]:
        """Return an expression for each part of the pattern below its fixed folder."""
        return [self._expression(part) for part in self._pattern.relative_to(self._root).parts]

    def _expression(self, part: str) -> re.Pattern[str]:
        streams = "|".join(sorted(re.escape(safe_name(stream)) for stream in self._streams)) or "(?!)"
        is_file = part == self._pattern.name
        stem, suffix = (Path(part).stem, Path(part).suffix) if is_file else (part, "")
        text, at = "", 0
        for match in _FIELD.finditer(stem):
            text += re.escape(stem[at : match.start()]) + f"(?:{_MATCHES.get(match[1], streams)})"
            at = match.end()
        text += re.escape(stem[at:]) + (_SUFFIX if is_file else "") + re.escape(suffix)
        return re.compile(text)

    def _remove(self) -> bool:
        """Remove the oldest file, and folders that become empty; return whether that worked."""
        old = self._oldest.popleft()
        self._size_bytes -= old.size_bytes
        return self._unlink(Path(old.path))

    def _unlink(self, path: Path, is_empty: bool = False) -> bool:
        """Remove a file unless it has a writer, with ``is_empty`` only if it is empty; return whether that worked."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if not try_lock(descriptor) or (is_empty and os.fstat(descriptor).st_size):
                    return False
                path.unlink()
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("%s: cannot remove %s: %s", self._where, path, cause(error))
            return False
        folder = path.parent
        with suppress(OSError):  # it is not empty
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent
        return True


def matching_files(pattern: Path, streams: Iterable[str]) -> dict[Path, int]:
    """Return the files of a pattern for these streams, with their sizes in bytes."""
    own = Retention(pattern, REPLACED, "")
    for stream in streams:
        own.add_stream(stream)
    return own.matching_files()


class Files:
    """The files of one sink, one after another for each stream.

    Without ``{date}`` or ``{time}`` in the pattern, the newest file has that name. Earlier ones are renamed to
    ``NAME-DATE-TIME``, by their last change. With them, a name that is taken gets a number.

    Raises:
        StageError: the pattern has an unknown field.
    """

    FIELDS = ("stream", "date", "time")

    def __init__(self, pattern: Path, rules: Rules, where: str) -> None:
        check_pattern(pattern, self.FIELDS, where)
        if pattern.is_symlink() and not pattern.is_dir():
            pattern = pattern.resolve()
        self.pattern, self.rules, self._where = pattern, rules, where
        self._is_dated = has_field(pattern, "date", "time")
        self._open = list[OutputFile]()
        self._begun = set[str]()
        self._retention = Retention(pattern, rules, where)

    def check(self) -> None:
        """Create the folder, if its name has no field.

        Raises StageError where that fails, or where another process or stage writes the file.
        """
        if not _FIELD.search(str(self.pattern.parent)):
            make_parent(self.pattern, self._where)
        if not _FIELD.search(str(self.pattern)) and self.pattern.is_file():
            with suppress(OSError):
                OutputFile(self.pattern, self._where).close()

    def begin(self, stream: str, appends: bool = False) -> OutputFile:
        """Open the next file of a stream: an empty one, or with ``appends`` the existing one, cut after its last line.

        Raises:
            StageError: it cannot be written, another process or stage writes it, or it does not hold JSON lines.
        """
        is_first = stream not in self._begun
        self._retention.add_stream(stream)
        if is_first and self._is_dated and not appends:
            self._retention.remove_empty()
        wanted = path = fill(self.pattern, stream)
        make_parent(path, self._where)
        number = 1
        while (file := self._open_if_free(path, is_first, appends)) is None:
            if self._is_dated:
                number += 1
                path = numbered_path(wanted, number)
        self._begun.add(stream)
        self._open.append(file)
        return file

    def finish(self, file: OutputFile, *, may_be_empty: bool = True) -> None:
        """Close a file. Remove it where it is empty and may not be."""
        self._open.remove(file)
        is_left = may_be_empty or bool(file.size_bytes) or not file.is_regular
        if not is_left:
            with suppress(OSError):
                file.path.unlink()  # before the lock is released, so that nobody else writes it
        file.close()
        if is_left and self._is_dated and file.is_regular:
            self._retention.add(file.path, file.size_bytes)

    def is_due(self, file: OutputFile, more_bytes: int = 0) -> bool:
        """Return whether the next file begins before ``more_bytes`` more are written."""
        rules = self.rules
        if not file.is_regular or not file.size_bytes:
            return False
        is_large = rules.rotate_bytes and file.size_bytes + more_bytes > rules.rotate_bytes
        return bool(is_large or (rules.rotate_s and time.monotonic() - file.begun_s >= rules.rotate_s))

    def remove_old(self) -> None:
        """Remove old files. Raises StageError where too little space stays free."""
        self._retention.remove_old(self._open)

    def make_room(self) -> bool:
        """Remove one old file, because the disk is full; return whether there was one."""
        return self._retention.make_room()

    def close(self) -> None:
        """Wait up to 0.5 s until the files are on the disk."""
        DISK.wait(_CLOSE_S)

    def _open_if_free(self, path: Path, is_first: bool, appends: bool) -> OutputFile | None:
        """Return the file at a path, ready to be written; None where the existing file is to be kept.

        A kept file without a date in its name is renamed.
        """
        try:
            file, is_ready = OutputFile(path, self._where), False
            try:
                is_ready = self._is_ready(file, is_first, appends)
                if not is_ready and not self._is_dated:
                    self._move_aside(file)
            finally:
                if not is_ready:
                    file.close()
        except OSError as error:
            raise cannot_write(path, error, self._where) from error
        return file if is_ready else None

    def _is_ready(self, file: OutputFile, is_first: bool, appends: bool) -> bool:
        """Return whether a file can be written, after emptying it or cutting its torn line where the rules say so."""
        if not file.is_regular and (self.rules.rotates or self.rules.removes):
            why, fix = "it is no regular file", "leave rotate and keep out"
            raise StageError(f"cannot rotate {file.path}", why=why, where=self._where, fix=fix)
        if not file.size_bytes:
            return True
        if is_first and not self.rules.keeps:
            file.cut(0)
            return True
        if not (is_first and appends):
            return False
        self._cut_torn_line(file)
        is_old = self.rules.rotate_s and time.time() - file.modified_s >= self.rules.rotate_s
        return not (self.is_due(file) or is_old)

    def _cut_torn_line(self, file: OutputFile) -> None:
        """Remove the incomplete line, or the zero bytes, that a power cut may leave at the end."""
        at, chunk_bytes = file.size_bytes, 1 << 16
        is_ours = os.pread(file.descriptor, 1, 0) in (b"{", b"\0")
        while is_ours and at > 0 and file.size_bytes - at <= _LONGEST_LINE_BYTES:
            begin = max(0, at - chunk_bytes)
            newline = os.pread(file.descriptor, at - begin, begin).rfind(b"\n")
            if newline >= 0 or begin == 0:
                end = begin + newline + 1
                if end < file.size_bytes:
                    log.warning("%s: the last line of %s was cut off: it was incomplete", self._where, file.path)
                file.cut(end)
                return
            at = begin
        raise StageError(
            f"cannot append to {file.path}",
            why="it does not hold JSON lines",
            where=self._where,
            fix="choose another path, or write existing: replace",
        )

    def _move_aside(self, file: OutputFile) -> None:
        """Rename a file after its last change, to free its name for the newest. Raises OSError."""
        stamp = time.strftime(f"{_DATE}-{_TIME}", time.localtime(file.modified_s))
        path, number = file.path.with_name(f"{file.path.stem}-{stamp}{file.path.suffix}"), 1
        while os.path.lexists(numbered_path(path, number)):
            number += 1
        file.path.rename(numbered_path(path, number))
        self._retention.add(numbered_path(path, number), file.size_bytes)
