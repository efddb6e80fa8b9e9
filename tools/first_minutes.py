"""Types the section "Your own model" of README into a terminal, at the speed of people, and measures the time.

    tools/release && python tools/first_minutes.py dist/edgert-0.1.0-py3-none-any.whl --svg docs/first-minutes.svg

The shell starts in a folder with the wheel, a model and a clip, with an empty home, so nothing is installed or cached.
It ends when the live page shows objects that the model found. The exit code is 1 if a command fails, or if that takes
longer than five minutes. ``--cast`` writes the recording for asciinema, ``--svg`` the drawing in README.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import cv2
import numpy as np

import edgert
from tests.helpers.browser import Page, browser
from tools.film import Output, draw

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 100, 28
TITLE = "Your own model on a live page, from a wheel"
_DONE = re.compile(r"\x1b\]133;D;(\d+)\x07")
"""Mark in the prompt with the exit code of the command before it (OSC 133)."""
_PROMPT = r"\[\e]133;D;$?\a\]$ "


def commands(readme: str) -> tuple[list[str], str]:
    """Return the commands in README's section about the own model, and the address of the live page."""
    section = readme.split("\n## Your own model\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    (address,) = re.findall(r"http://[\w.:]+", block)
    return block.splitlines(), address


@dataclass(slots=True)
class Terminal:
    """A shell in a terminal, and its output; its home is the folder ``home`` in ``folder``."""

    folder: Path
    words_per_minute: float
    outputs: list[Output] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    _master: int = -1
    _process: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _reader: threading.Thread | None = None

    def __enter__(self) -> Terminal:
        (self.folder / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        first = str(Path(sys._base_executable).parent)  # type: ignore[attr-defined]
        here = {"HOME": str(self.folder / "home"), "PATH": os.pathsep.join((first, "/usr/bin", "/bin")), "PS1": _PROMPT}
        environment = {**kept, **here, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self._process, self._master = pty.fork()
        if self._process == 0:
            os.chdir(self.folder)
            shell = ["bash", "--noprofile", "--norc", "-i"]
            os.execvpe("bash", shell, environment)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait(lambda: self.exit_codes() != [], 10)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGHUP)
        os.waitpid(self._process, 0)
        assert self._reader is not None
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while select.select([self._master], [], []):
            try:
                text = decoder.decode(os.read(self._master, 1 << 16))
            except OSError:  # the last program of the terminal has ended
                return
            with self._news:
                self.outputs.append(Output(time.monotonic() - self.began_s, text))
                self._news.notify_all()

    def exit_codes(self) -> list[int]:
        """Return the exit code before every prompt; the first is that of the shell's start."""
        return [int(code) for code in _DONE.findall("".join(one.text for one in self.outputs))]

    def wait(self, is_there: Callable[[], bool], limit_s: float) -> None:
        """Wait until a condition of :attr:`outputs` is true."""
        with self._news:
            if not self._news.wait_for(is_there, limit_s):
                raise TimeoutError("the terminal shows no prompt")

    def type(self, text: str) -> None:
        for letter in f"{text}\r":
            os.write(self._master, letter.encode())
            time.sleep(12 / self.words_per_minute)

    def interrupt(self) -> None:
        os.write(self._master, b"\x03")


def fill(folder: Path, wheel: Path, seconds: int) -> None:
    """Write the files of README's reader into a folder: the wheel, a model, and a clip."""
    shutil.copy(wheel, folder)
    shutil.copy(ROOT / "pipelines/assets/parts.onnx", folder / "model.onnx")
    belt = {"source": f"python:{ROOT}/pipelines/conveyor:Conveyor", "size": "640x480", "limit": 30 * seconds}
    video = {"sink": "video", "from": "belt", "path": str(folder / "clip.mp4")}
    with edgert.Pipeline({"schema": 1, "stages": {"belt": {**belt, "fps": 30, "seed": 7}, "video": video}}) as pipeline:
        pipeline.run()


def found(address: str) -> list[str]:
    """Return the labels of the objects on the page; empty while it is not there."""
    try:
        with urlopen(f"{address}/stats.json", timeout=2) as answer:
            latest: dict[str, Any] = json.load(answer)["latest"] or {}
    except OSError:
        return []
    return [str(one["label"]) for one in latest.get("objects", [])]


def walk(terminal: Terminal, lines: Sequence[str], address: str, limit_s: float) -> float:
    """Type the lines and return the seconds from the first key to objects on the live page."""
    began_s = time.monotonic()
    for number, line in enumerate(lines, 2):
        terminal.type(line)
        while len(codes := terminal.exit_codes()) < number and not (number == len(lines) + 1 and found(address)):
            if time.monotonic() - began_s > limit_s:
                raise TimeoutError(f"not on the live page within {limit_s:g} s: {line}")
            time.sleep(0.05)
        if len(codes) == number and (codes[-1] or number == len(lines) + 1):
            raise RuntimeError(f"exit code {codes[-1]}, and no live page: {line}")
    return time.monotonic() - began_s


def screenshots(page: Page, address: str) -> dict[str, bytes]:
    images = {}
    for name, dark in (("day", False), ("night", True)):
        page.open(address, 1120, 700, dark=dark)
        page.evaluate("new Promise(done => setTimeout(done, 700))")  # the first image is on its way
        image = cv2.imdecode(np.frombuffer(page.image(), np.uint8), cv2.IMREAD_COLOR)
        images[name] = bytes(cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, 55])[1])
    return images


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 if the live page showed objects in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="of tools/release")
    parser.add_argument("--cast", type=Path, metavar="FILE", help="write the recording here")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the film here; its end needs Chromium")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="it must not take longer")
    parser.add_argument("--wpm", type=float, default=40, metavar="N", help="words that are typed in a minute")
    asked = parser.parse_args(arguments)
    lines, address = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        if probe.connect_ex((host, int(port))) == 0:
            print(f"error: something else answers on {address}: end it first", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "here"
        folder.mkdir()
        fill(folder, asked.wheel, seconds=180)
        seen = browser(Path(scratch)) if asked.svg else nullcontext()  # started before, as it is slow and the clip ends
        try:
            with seen as page, Terminal(folder, asked.wpm) as terminal:
                took_s = walk(terminal, lines, address, asked.limit)
                labels = found(address)
                until = len(terminal.outputs)
                images = screenshots(page, address) if page else None
                terminal.interrupt()
                terminal.wait(lambda: len(terminal.exit_codes()) > len(lines), 30)
        except (RuntimeError, TimeoutError) as error:
            print(f"error: {error}\n{''.join(one.text for one in terminal.outputs)[-2000:]}", file=sys.stderr)
            return 1
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE}
    if asked.cast:
        events = [json.dumps([round(one.at_s, 3), "o", one.text], ensure_ascii=False) for one in terminal.outputs]
        asked.cast.write_text("\n".join([json.dumps(head), *events, ""]), encoding="utf-8")
    if asked.svg:
        asked.svg.write_text(draw(head, terminal.outputs[:until], images), encoding="utf-8")
    print(f"{took_s:.0f} s from the first key to {len(labels)} objects on {address}: {', '.join(sorted(set(labels)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
