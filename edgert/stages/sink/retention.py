"""Names of a sink's output files, and the removal of old files by the sink's rules.

Folders are not listed for each frame: a sink lists its own once, and remembers the files.
"""

import heapq
import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import StageError, cause, nearest, raised_as
from edgert.files import try_lock
from edgert.units import format_bytes

log = logging.getLogger("edgert.sink")

_REMOVAL_PERIOD_S = 1.0
_SHORT_S = 10.0
"""Seconds that other sinks have to make room, before too little free space is an error."""
_MAX_REMOVALS = 1000  # files removed at a time, so that frames do not wait long
_MAX_REMEMBERED = 10_000  # oldest files that are remembered; after these, the folder is listed again
CLOCK_WAS_SET = 1_577_836_800  # 2020; earlier dates come from a board whose clock was not set yet


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

FIELD = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_WIDTH = re.compile(r"0?[1-9]?d?")
_UNSAFE = re.compile(r"[^\w.\-]|^\.")
DATE, TIME = "%Y-%m-%d", "%H%M%S"
_MATCHES = {"date": r"\d{4}-\d\d-\d\d", "time": r"\d{6}", "frame": r" *\d+"}
_SUFFIX = r"(?:-\d{4}-\d\d-\d\d-\d{6})?(?:-\d+)?"
"""Date and number that are appended to the name of a file that was there before."""


def check_pattern(pattern: Path, fields: tuple[str, ...], where: str) -> None:
    """Raise StageError for a ``{field}`` of a pattern that is not among ``fields``, or has a wrong format."""
    for name, spec in FIELD.findall(str(pattern)):
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
            return time.strftime(DATE if name == "date" else TIME, now)
        return safe_name(stream) if name == "stream" else format(frame, spec or "")

    return Path(FIELD.sub(value, str(pattern)))


def safe_name(text: str) -> str:
    """Return a text as part of a file name: other signs than letters, digits, ``.``, ``-`` and ``_`` become ``_``."""
    return _UNSAFE.sub("_", text)


def has_field(pattern: Path, *names: str) -> bool:
    """Return whether ``pattern`` contains one of these fields."""
    return any(found in names for found, _ in FIELD.findall(str(pattern)))


def numbered_path(path: Path, number: int) -> Path:
    """Return ``out-2.mp4`` for ``out.mp4`` and 2; the path itself for 1."""
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


def fixed_folder(pattern: Path) -> Path:
    """Return the deepest folder of a pattern without a field."""
    folder = pattern.parent
    while FIELD.search(str(folder)):
        folder = folder.parent
    return folder


def make_parent(path: Path, where: str) -> None:
    """Create the folder of ``path``. Raises StageError when that is impossible."""
    with raised_as(StageError, f"cannot make the folder {path.parent}", where=where):
        path.parent.mkdir(parents=True, exist_ok=True)


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

    def remove_old(self, unfinished: Callable[[], Mapping[str, int]] = dict) -> None:
        """Remove old files by the rules, at most once a second.

        Args:
            unfinished: function that returns the sizes in bytes of the files that are being written, by path.

        Raises:
            StageError: too little space is free, and no file is left to remove.
        """
        now_s = time.monotonic()
        if not self._rules.removes or now_s < self._next_s:
            return
        self._next_s = now_s + _REMOVAL_PERIOD_S
        own = unfinished()
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

    def _list_files(self, own: Mapping[str, int]) -> None:
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
        for match in FIELD.finditer(stem):
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
