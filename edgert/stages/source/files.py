"""Sources that read files: a video, or the images of a folder or glob."""

import logging
import os
import re
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

from edgert.config.fields import resolve_input
from edgert.config.stages import SourceStage
from edgert.errors import StageError, nearest
from edgert.files import exists
from edgert.memory import lend
from edgert.memory.cuda import CudaDevice
from edgert.runtime.stage import SourceStats
from edgert.stages.context import Context
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.ffmpeg import Video
from edgert.stages.source.packets import Tap
from edgert.stages.source.stills import SUFFIXES, more_images, read_image
from edgert.stages.source.timeline import DEFAULT_PERIOD_NS, Image, ImageSource, MediaClock

log = logging.getLogger("edgert.source")


def absolute(text: str, directory: Path) -> Path:
    """Return the absolute path of a file that a pipeline file names."""
    return resolve_input(Path(text), directory).absolute()


# Video files.

CUT_NS = 250_000_000
"""Shortfall against the declared length that shows a cut-off video; less may be rounding."""
_RIFF_STATED = 64, 2**32 - 2**20
"""Plausible sizes of an AVI's RIFF chunk in bytes; placeholders lie outside."""


class VideoFile(ImageSource):
    """Source of every frame of a video file, in order, as fast as they are taken.

    ``realtime: true`` holds frames back until they are due, ``loop`` starts again at the end, ``fps`` drops frames
    evenly, ``limit`` ends early. Damaged frames are skipped and counted. The file is opened at once, so that a missing
    file fails before anything else starts. So does a recording that was cut off, where its index shows it.

    Args:
        path: path of the file; by default that of ``source``.
        file: name that the frames get, for one of several videos; empty otherwise.

    Raises StageError: the file is missing, unreadable, not a video, cut off, or without a single good frame.
    """

    def __init__(
        self, name: str, config: SourceStage, context: Context, path: Path | None = None, file: str = ""
    ) -> None:
        super().__init__(name, config, context, MediaClock(False, DEFAULT_PERIOD_NS), config.fps, file)
        self._path = path or absolute(config.source.removeprefix("file://"), context.directory)
        self._loop = config.loop
        self._device: CudaDevice | None = None
        self._choice = DecoderChoice(self._where, config.decode)
        self._video: Video | None = self._open()
        if period_ns := self._video.outline.period_ns:
            self._timeline.media.restart(period_ns)
        self.share, self.thin = self._timeline.share, self._timeline.thin
        self.tap = Tap(context.clock, self._timeline.media, live=False, waits=True)

    def on_gpu(self, device: CudaDevice) -> str:
        """Decode on this GPU, where frames then stay; return why not otherwise. Call it before the start."""
        video = self._video = self._video or self._open()
        reason = video.why_not_on(device)
        self.close()
        self._skipped = 0
        self._device = None if reason else device
        return reason

    def stats(self) -> SourceStats:
        return SourceStats(self._skipped + (self._video.skipped if self._video else 0))

    def close(self) -> None:
        if self._video is not None:
            self._skipped += self._video.skipped
            self._video.close()
            self._video = None

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        while True:
            video = self._video = self._video or self._open()
            video.tap = self.tap
            video.choose_decoder(self._choice, self._device)
            count, end_ns, period_ns = 0, 0, video.outline.period_ns
            for image in video.images():
                count, end_ns = count + 1, max(end_ns, (image.media_ns or 0) + period_ns)
                yield image
            self.close()
            if count == 0:
                raise self._error("gave no frame", f"all {video.skipped} pieces of it are damaged", "record it again")
            if missing := _find_missing_part(self._path, video, end_ns):
                raise self._error("is cut off", missing, "copy it again; the frames up to here were processed")
            if not self._loop:
                return
            self._timeline.media.restart()

    def _open(self) -> Video:
        if not exists(self._path):
            siblings = [path.name for path in self._path.parent.glob("*")]
            why = f"there is no such file{nearest(self._path.name, siblings)}"
            raise StageError(f"cannot open {self._path}", why=why, where=self._where, fix="check the path")
        video = Video(str(self._path), self._counter, self._clock, where=self._where)
        size_bytes = self._path.stat().st_size
        if video.outline.end_bytes > size_bytes:
            video.close()
            why = f"it ends after {size_bytes} bytes; its index lists frames up to byte {video.outline.end_bytes}"
            raise self._error("is cut off", why, "copy it again, or keep what is there: ffmpeg -i IN -c copy OUT")
        return video

    def _error(self, what: str, why: str, fix: str) -> StageError:
        return StageError(f"{self._path} {what}", why=why, where=self._where, fix=fix)


def _find_missing_part(path: Path, video: Video, end_ns: int) -> str:
    """Return how a video that was read up to ``end_ns`` is shorter than its container declares; empty if it is not.

    The declared count includes frames that a recorder dropped or an edit list cuts away.
    """
    if stated_bytes := _stated_riff_bytes(path):
        size_bytes = path.stat().st_size
        return f"it ends after {size_bytes} of {stated_bytes} bytes" if size_bytes < stated_bytes else ""
    outline = video.outline
    if outline.frames:
        # Muxers miscount by a few frames; that is not a cut.
        is_short = not outline.end_bytes and video.packets < 0.98 * outline.frames - 2
        return f"{video.packets} of {outline.frames} frames are there" if is_short else ""
    if outline.duration_ns is None or not outline.states_length or not outline.is_silent or video.is_joined:
        return ""
    end_ns -= min(outline.begin_ns, 0)  # the declared length counts from zero, or from a negative first time
    is_short = outline.duration_ns - end_ns > CUT_NS
    return f"it ends at {end_ns / 1e9:.1f} s of {outline.duration_ns / 1e9:.1f} s" if is_short else ""


def _stated_riff_bytes(path: Path) -> int:
    """Return the length of an AVI file by its RIFF chunks; 0 for other files and unknown lengths."""
    end_bytes, size_bytes = 0, path.stat().st_size
    with path.open("rb") as file:
        while end_bytes < size_bytes:
            file.seek(end_bytes)
            head = file.read(12)
            if head[:4] != b"RIFF" or head[8:11] != b"AVI":
                break
            length = int.from_bytes(head[4:8], "little")
            if not _RIFF_STATED[0] <= length <= _RIFF_STATED[1]:  # the recorder was interrupted before it wrote it
                return 0
            end_bytes += 8 + length + length % 2
    return end_bytes


_VIDEOS = (
    ".3gp .264 .265 .asf .avi .dav .flv .h264 .h265 .hevc .m2ts .m4v .mjpeg .mjpg .mkv .mov .mp4 .mpeg .mpg .mts .mxf "
    ".ogv .ts .vob .webm .wmv .y4m"
)
VIDEO_SUFFIXES = frozenset(_VIDEOS.split())


def is_pattern(path: Path) -> bool:
    """Return whether a path is a glob and not the name of an existing file or folder."""
    return any(letter in str(path) for letter in "*?[") and not exists(path)


def matched(pattern: Path) -> list[Path]:
    """Return the files of a folder or glob, or the one file, in natural order: ``a2`` before ``a10``.

    Hidden files are left out, such as those that macOS puts beside each file of a memory card.
    """
    try:
        if pattern.is_dir():
            found = list(pattern.iterdir())
        elif is_pattern(pattern):
            anchor = Path(pattern.anchor)
            found = list(anchor.glob(str(pattern.relative_to(anchor))))
        else:
            found = [pattern]
        parts = {path: re.findall(r"\d+|\D+", str(path)) for path in found if path.is_file()}
    except OSError:  # the caller's error about an empty result names missing permissions
        return []
    shown = [path for path in parts if not path.name.startswith(".") or path == pattern]
    return sorted(shown, key=lambda path: [(0, int(p), p) if p.isdigit() else (1, 0, p) for p in parts[path]])


def names_videos(pattern: Path) -> bool:
    """Return whether a folder or glob means videos: by the glob's suffix, else by the files there."""
    if is_pattern(pattern) and pattern.suffix.lower() in VIDEO_SUFFIXES:
        return True
    suffixes = {path.suffix.lower() for path in matched(pattern)}
    return not suffixes.isdisjoint(VIDEO_SUFFIXES) and suffixes.isdisjoint(SUFFIXES)


def videos_at(pattern: Path, where: str) -> list[Path]:
    """Return the videos of a folder or glob, or the one file.

    Where a glob matches some files with the usual suffixes, all other files are left out.

    Raises StageError: there is none.
    """
    found = matched(pattern)
    usual = [path for path in found if path.suffix.lower() in VIDEO_SUFFIXES]
    if chosen := usual if usual or pattern.is_dir() else found:
        return chosen
    known = " ".join(sorted(VIDEO_SUFFIXES))
    raise StageError(
        f"no video at {pattern}",
        why=_why_nothing_matches(pattern),
        where=where,
        fix=f"check the path; folders are searched for {known}",
    )


def _why_nothing_matches(pattern: Path) -> str:
    """Return why a folder or glob has no file of the wanted kind."""
    if pattern.is_dir():
        return "the folder holds none" if os.access(pattern, os.R_OK | os.X_OK) else "this user may not read the folder"
    if pattern.is_symlink() and not exists(pattern):
        return f"it is a link to {pattern.readlink()}, which is not there"
    if pattern.parent.is_dir():
        return f"nothing there matches{nearest(pattern.name, (path.name for path in pattern.parent.iterdir()))}"
    return f"there is no folder {pattern.parent}"


DEFAULT_FPS = 30.0
_SHOWN = 5


class ImageFiles(ImageSource):
    """Source of image files as BGR frames, in natural order (``a2`` before ``a10``), rotated by their EXIF.

    Sizes may differ from image to image. ``fps`` (30 by default) sets their distance in media time; ``realtime: true``
    also holds them back that long. Images that cannot be read are skipped and counted; the first few are named.

    Raises StageError: no image matches, or none of them can be read.
    """

    def __init__(self, name: str, config: SourceStage, context: Context) -> None:
        super().__init__(name, config, context, MediaClock(False, round(1e9 / (config.fps or DEFAULT_FPS))), None)
        self._pattern = absolute(config.source.removeprefix("images:"), context.directory)
        self._loop = config.loop
        self._is_explicit = config.source.startswith("images:")
        self._paths = self._find_images()
        self._folder = os.path.commonpath([path.parent for path in self._paths])
        self._unreadable: dict[Path, None] = {}
        self._named, self._has_warned = 0, False

    def _images(self, stop: threading.Event) -> Generator[Image, None, None]:
        while not stop.is_set():
            for path in self._paths:
                if stop.is_set():
                    return
                if (image := read_image(path)) is None:
                    self._skipped += 1
                    self._unreadable[path] = None
                    continue
                self._warn_of_unreadable_images()
                self._warn_of_more_images(path)
                lease = lend(image, self._counter)
                name = path.relative_to(self._folder).as_posix()
                yield Image("bgr", (image,), lease, self._clock.now_ns(), file=name)
            if len(self._unreadable) == len(self._paths):
                names = [path.name for path in self._paths]
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise StageError(
                    f"none of the {len(names)} images at {self._pattern} can be read",
                    why=f"not an image, or damaged: {', '.join(names[:_SHOWN])}{more}",
                    where=self._where,
                    fix="check that they open elsewhere; an images: pattern must match images only",
                )
            self._warn_of_unreadable_images()
            if not self._loop:
                return

    def _warn_of_unreadable_images(self) -> None:
        """Name the first unreadable images, each once."""
        names = [str(path) for path in list(self._unreadable)[self._named : _SHOWN]] if self._named < _SHOWN else []
        if names:
            log.warning("%s: skipped, as they are damaged or not images: %s", self._where, ", ".join(names))
        self._named += len(names)

    def _warn_of_more_images(self, path: Path) -> None:
        """Warn of the first file that holds more images than the one that is read."""
        if not self._has_warned and (hint := more_images(path)):
            self._has_warned = True
            log.warning("%s: only the first of several images in %s is read: %s", self._where, path, hint)

    def _find_images(self) -> Sequence[Path]:
        pattern, files = self._pattern, matched(self._pattern)
        found = [path for path in files if path.suffix.lower() in SUFFIXES] if pattern.is_dir() else files
        videos = [path for path in files if path.suffix.lower() in VIDEO_SUFFIXES]
        if videos and not (self._is_explicit and pattern.is_dir()):
            raise StageError(
                f"{pattern} names both images and videos",
                why=f"{videos[0].name} is a video, and {len(files) - len(videos)} of {len(files)} files are not",
                where=self._where,
                fix=f'source: "videos:{pattern}", or a pattern that matches images only',
            )
        if not found:
            fix = f"check the path; folders are searched for {', '.join(sorted(SUFFIXES))}"
            raise StageError(f"no image at {pattern}", why=_why_nothing_matches(pattern), where=self._where, fix=fix)
        return found
