"""Files that sinks write for years, one after another: what they are called, when the next begins, which are removed.

Nothing here lists a folder for each frame: a sink lists its own once, and then remembers.
"""

import heapq
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import StageError, cause, nearest
from edgert.stages.sink.output_file import DISK, OutputFile, cannot_write, lock
from edgert.units import format_bytes

log = logging.getLogger("edgert.sink")

_CLOSE_S = 0.5  # of the 2 s in which a pipeline ends
_TEND_S = 1.0
_SHORT_S = 10.0
_AT_ONCE = 1000  # files removed in one go, so that frames do not wait long
_REMEMBERED = 10_000  # of the oldest files; then the folder is listed again
CLOCK_WAS_SET = 1_577_836_800  # 2020: earlier dates are of a board whose clock had not been set yet
_LONGEST_LINE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for the files of one sink; 0 is no limit.

    Attributes:
        keeps: files from before the run are kept, not replaced.
        endless: frames may come for ever, so no per-frame memory is allowed.
        rotate_bytes, rotate_s: the next file begins when one would become larger or is that old.
        keep_s, keep_bytes: the oldest files are removed when they are older, or all of the sink's take more.
        free_bytes: they are also removed when less is free on the disk.
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
        """Whether files end before the run does."""
        return bool(self.rotate_bytes or self.rotate_s)

    @property
    def removes(self) -> bool:
        """Whether old files are removed."""
        return bool(self.keep_s or self.keep_bytes or self.free_bytes)


REPLACED = Rules()
"""Rules by which every run replaces the files of the last, without rotation or removal."""

# Names made from a pattern.

_FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_WIDTH = re.compile(r"0?[1-9]?d?")
_UNSAFE = re.compile(r"[^\w.\-]|^\.")
_DATE, _TIME = "%Y-%m-%d", "%H%M%S"
_MATCHES = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d{6}", "frame": r" *\d+"}
_ASIDE = r"(?:-\d{4}-\d\d-\d\d-\d{6})?(?:-\d+)?"


def check_pattern(pattern: Path, fields: tuple[str, ...], where: str) -> None:
    """Raise StageError when ``pattern`` has a ``{field}`` other than ``fields``, or one it cannot format."""
    for name, spec in _FIELD.findall(str(pattern)):
        if name not in fields:
            what = f"{pattern} has an unknown field {{{name}}}{nearest(name, fields)}"
            raise StageError(what, where=where, fix="known: " + ", ".join(f"{{{field}}}" for field in fields))
        if spec and (name != "frame" or not _WIDTH.fullmatch(spec)):
            what = f"{pattern}: cannot format {{{name}:{spec}}}"
            raise StageError(what, where=where, fix="write {frame:06d} or {stream}")


def fill(pattern: Path, stream: str, frame: int = 0) -> Path:
    """Fill ``{stream}``, ``{frame}`` or ``{frame:06d}``, ``{date}`` and ``{time}`` into ``pattern``.

    Date and time are now, in the machine's time zone. No other field is looked up.
    """
    now = time.localtime()

    def value(match: re.Match[str]) -> str:
        name, spec = match.groups()
        if name in ("date", "time"):
            return time.strftime(_DATE if name == "date" else _TIME, now)
        return safe(stream) if name == "stream" else format(frame, spec or "")

    return Path(_FIELD.sub(value, str(pattern)))


def safe(stream: str) -> str:
    """Return a stream's name as part of a file name."""
    return _UNSAFE.sub("_", stream)


def has_field(pattern: Path, *names: str) -> bool:
    """Return whether ``pattern`` contains one of these fields."""
    return any(found in names for found, _ in _FIELD.findall(str(pattern)))


def numbered(path: Path, number: int) -> Path:
    """Return ``out-2.mp4`` for ``out.mp4`` and 2; the first has no number."""
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def fixed_folder(pattern: Path) -> Path:
    """Return the deepest folder without a field."""
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


# Old files go.


@dataclass(frozen=True, slots=True, order=True)
class _Old:
    """A file that is finished: when that was, by the monotonic clock, and what it takes."""

    at_s: float
    path: str
    size_bytes: int


class Retention:
    """Remover of a pattern's oldest files by its rules, except files being written. For one thread.

    Files of streams that never came in this run are kept.
    """

    def __init__(self, pattern: Path, rules: Rules, where: str) -> None:
        self._pattern, self._rules, self._where = pattern, rules, where
        self._root = fixed_folder(pattern)
        self._streams = set[str]()
        self._oldest, self._are_all, self._size_bytes = deque[_Old](), False, 0
        self._next_s, self._short_s, self._has_warned = 0.0, math.inf, False
        self._start_s, self._start_date_s = time.monotonic(), time.time()

    def knows(self, stream: str) -> None:
        """Register a stream whose files belong to the sink."""
        if stream not in self._streams:
            self._streams.add(stream)
            self._oldest.clear()
            self._are_all, self._next_s = False, 0.0

    def add(self, path: Path, size_bytes: int) -> None:
        """Register a finished file."""
        self._size_bytes += size_bytes
        if self._are_all and len(self._oldest) < 2 * _REMEMBERED:
            self._oldest.append(_Old(time.monotonic(), str(path), size_bytes))
        else:
            self._are_all = False

    def tend(self, written: Iterator[OutputFile] | list[OutputFile]) -> None:
        """Remove old files by the rules, at most once a second.

        Args:
            written: files that are not finished.

        Raises:
            StageError: too little is free, and nothing is left to remove.
        """
        now_s = time.monotonic()
        if not self._rules.removes or now_s < self._next_s:
            return
        self._next_s = now_s + _TEND_S
        own = {str(file.path): file.size_bytes for file in written}
        for _ in range(_AT_ONCE):
            if not self._oldest and not self._are_all:
                self._list(own)
            if not self._oldest or not self._is_too_much(now_s, sum(own.values())):
                break
            self._remove()
        else:
            self._next_s = now_s
        free = 0 if self._oldest else self._missing_bytes()
        self._short_s = min(self._short_s, now_s) if free else math.inf
        if now_s - self._short_s > _SHORT_S:  # nor has any other sink made room
            raise StageError(
                f"only {format_bytes(free)} are free for {self._pattern}",
                why=f"keep.free leaves {format_bytes(self._rules.free_bytes)}, and no older file is left to remove",
                where=self._where,
                fix="free some space, or lower keep.free",
            )

    def make_room(self) -> bool:
        """Remove the oldest file, because the disk is full; return whether there was one."""
        if self._rules.removes and not self._oldest and not self._are_all:
            self._list({})
        while self._rules.removes and self._oldest:
            if self._remove():
                return True
        return False

    def _is_too_much(self, now_s: float, written_bytes: int) -> bool:
        rules = self._rules
        return bool(
            (rules.keep_s and now_s - self._oldest[0].at_s > rules.keep_s)
            or (rules.keep_bytes and self._size_bytes + written_bytes > rules.keep_bytes)
            or self._missing_bytes()
        )

    def _missing_bytes(self) -> int:
        """Return how many bytes are free, where that is too little; else 0."""
        if not self._rules.free_bytes:
            return 0
        try:
            disk = os.statvfs(self._root)
        except OSError:
            return 0
        free = disk.f_bavail * disk.f_frsize
        return max(free, 1) if free < self._rules.free_bytes else 0

    def _list(self, own: dict[str, int]) -> None:
        """Read the folders again: the oldest files, and the total size."""
        self._size_bytes, count = 0, 0

        def found() -> Iterator[_Old]:
            nonlocal count
            for entry in self._matching(str(self._root), self._expressions()):
                with suppress(FileNotFoundError):
                    file = entry.stat(follow_symlinks=False)
                    if entry.path not in own:
                        count += 1
                        self._size_bytes += file.st_size
                        yield _Old(self._finished_s(file.st_mtime), entry.path, file.st_size)

        self._oldest = deque(heapq.nsmallest(_REMEMBERED, found()))
        self._are_all = count == len(self._oldest)

    def listed(self) -> dict[Path, int]:
        """Return the files of the pattern and their sizes in bytes; reads the folders."""
        found = {}
        for entry in self._matching(str(self._root), self._expressions()):
            with suppress(FileNotFoundError):
                found[Path(entry.path)] = entry.stat(follow_symlinks=False).st_size
        return found

    def remove_empty(self) -> None:
        """Remove files without content, as a process leaves them that was killed before its first images came."""
        for path, size_bytes in self.listed().items():
            if not size_bytes:
                self._unlinked(path, is_empty=True)

    def _finished_s(self, date_s: float) -> float:
        """Return a file's date on the monotonic clock.

        A clock that was set during the run, or had not been set before, makes no file old.
        """
        now_s, passed_s = time.monotonic(), time.monotonic() - self._start_s
        if self._start_date_s <= date_s <= self._start_date_s + passed_s:
            return self._start_s + date_s - self._start_date_s
        if date_s < CLOCK_WAS_SET:
            return self._start_s + (date_s - CLOCK_WAS_SET) * 1e-9  # oldest first, and as old as the run
        return now_s - max(0.0, time.time() - date_s)

    def _matching(self, folder: str, expressions: list[re.Pattern[str]]) -> Iterator["os.DirEntry[str]"]:
        first, *rest = expressions
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                if not first.fullmatch(entry.name):
                    continue
                if rest and entry.is_dir(follow_symlinks=False):
                    yield from self._matching(entry.path, rest)
                elif not rest and entry.is_file(follow_symlinks=False):
                    yield entry

    def _expressions(self) -> list[re.Pattern[str]]:
        return [self._expression(part) for part in self._pattern.relative_to(self._root).parts]

    def _expression(self, part: str) -> re.Pattern[str]:
        streams = "|".join(sorted(re.escape(safe(stream)) for stream in self._streams)) or "(?!)"
        is_file = part == self._pattern.name
        stem, suffix = (Path(part).stem, Path(part).suffix) if is_file else (part, "")
        text, at = "", 0
        for match in _FIELD.finditer(stem):
            text += re.escape(stem[at : match.start()]) + f"(?:{_MATCHES.get(match[1], streams)})"
            at = match.end()
        text += re.escape(stem[at:]) + (_ASIDE if is_file else "") + re.escape(suffix)
        return re.compile(text)

    def _remove(self) -> bool:
        """Remove the oldest file, and folders that it leaves empty; return whether that worked."""
        old = self._oldest.popleft()
        self._size_bytes -= old.size_bytes
        return self._unlinked(Path(old.path))

    def _unlinked(self, path: Path, is_empty: bool = False) -> bool:
        """Remove a file without a writer, with ``is_empty`` only if it is still empty; return whether that worked."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if not lock(descriptor) or (is_empty and os.fstat(descriptor).st_size):
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
        with suppress(OSError):  # others are in it
            while folder != self._root:
                folder.rmdir()
                folder = folder.parent
        return True


def written_by(pattern: Path, streams: Iterable[str]) -> dict[Path, int]:
    """Return the files of a pattern for these streams, with their sizes in bytes."""
    own = Retention(pattern, REPLACED, "")
    for stream in streams:
        own.knows(stream)
    return own.listed()


class Files:
    """The files of one sink, one after another for each stream.

    Without ``{date}`` or ``{time}`` in the pattern, its name is that of the newest file: the one before is renamed
    ``NAME-DATE-TIME``, after its last change. With them, a name that is taken gets a number.

    Raises:
        StageError: the pattern has a field that is not known.
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
        """Create the folder, where its name is known.

        Raises StageError when that is impossible, or another process or stage writes the file.
        """
        if not _FIELD.search(str(self.pattern.parent)):
            make_parent(self.pattern, self._where)
        if not _FIELD.search(str(self.pattern)) and self.pattern.is_file():
            with suppress(OSError):
                OutputFile(self.pattern, self._where).close()

    def begin(self, stream: str, appends: bool = False) -> OutputFile:
        """Open the next file of a stream: empty, or with ``appends`` the existing one, cut after its last line.

        Raises:
            StageError: it cannot be written, another process or stage writes it, or it holds no lines.
        """
        is_first = stream not in self._begun
        self._retention.knows(stream)
        if is_first and self._is_dated and not appends:
            self._retention.remove_empty()
        wanted = path = fill(self.pattern, stream)
        make_parent(path, self._where)
        number = 1
        while True:
            try:
                file = OutputFile(path, self._where)
                done = self._is_ready(file, is_first, appends)
            except OSError as error:
                raise cannot_write(path, error, self._where) from error
            if done:
                break
            if self._is_dated:
                file.close()
                number += 1
                path = numbered(wanted, number)
            else:
                self._move_aside(file)
        self._begun.add(stream)
        self._open.append(file)
        return file

    def finish(self, file: OutputFile, *, may_be_empty: bool = True) -> None:
        """Close it; unless it may be empty, one without content is removed."""
        self._open.remove(file)
        is_left = may_be_empty or bool(file.size_bytes) or not file.is_regular
        if not is_left:
            with suppress(OSError):
                file.path.unlink()  # while it is locked: nobody else writes it
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

    def tend(self) -> None:
        """Remove old files. Raises StageError when too little is still free."""
        self._retention.tend(self._open)

    def make_room(self) -> bool:
        """Remove one old file, because the disk is full; return whether there was one."""
        return self._retention.make_room()

    def close(self) -> None:
        """Wait a moment for the disk."""
        DISK.wait(_CLOSE_S)

    def _is_ready(self, file: OutputFile, is_first: bool, appends: bool) -> bool:
        if not file.is_regular and (self.rules.rotates or self.rules.removes):
            os.close(file.descriptor)
            why, fix = "it is no regular file", "leave rotate and keep out"
            raise StageError(f"cannot rotate {file.path}", why=why, where=self._where, fix=fix)
        if not file.size_bytes:
            return True
        if is_first and not self.rules.keeps:
            file.cut(0)
            return True
        if not (is_first and appends):
            return False
        try:
            self._cut_torn_line(file)
        except StageError:
            file.close()
            raise
        is_old = self.rules.rotate_s and time.time() - file.modified_s >= self.rules.rotate_s
        return not (self.is_due(file) or is_old)

    def _cut_torn_line(self, file: OutputFile) -> None:
        """Remove the half line, or the zero bytes, that a power cut may leave at the end."""
        at, chunk_bytes = file.size_bytes, 1 << 16
        is_ours = os.pread(file.descriptor, 1, 0) in (b"{", b"\0")
        while is_ours and at > 0 and file.size_bytes - at <= _LONGEST_LINE_BYTES:
            begin = max(0, at - chunk_bytes)
            newline = os.pread(file.descriptor, at - begin, begin).rfind(b"\n")
            if newline >= 0 or begin == 0:
                end = begin + newline + 1
                if end < file.size_bytes:
                    log.warning("%s: the last line of %s was cut off: half of it was missing", self._where, file.path)
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
        """Rename an existing file to free its name for the newest."""
        stamp = time.strftime(f"{_DATE}-{_TIME}", time.localtime(file.modified_s))
        path, number = file.path.with_name(f"{file.path.stem}-{stamp}{file.path.suffix}"), 1
        while os.path.lexists(numbered(path, number)):
            number += 1
        try:
            file.path.rename(numbered(path, number))
        except OSError as error:
            raise cannot_write(file.path, error, self._where) from error
        finally:
            file.close()
        self._retention.add(numbered(path, number), file.size_bytes)
