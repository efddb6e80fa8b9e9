"""Hours of one pipeline: memory, files, threads, processor time and latency must be those of its beginning.

The demo's scene at a camera's rate through model, tracker and drawing, into videos and lines that rotate and go, into
stills, and onto a live page that one viewer watches and that is asked for its state every five seconds. Ctrl-C ends it
early and judges what there is. Each minute FILE is written anew, so that a run can be judged whose machine went away.

Slopes are of Theil and Sen: the median of those between all pairs of minutes, after the first ten (or a sixth of a
shorter run), so that no single sample decides. Memory of a run of four hours is judged over all of that. A shorter one
is extrapolated from its second half, and the slope of all of it printed beside: in the first half the arenas of the C
library, one for each thread, grow to the most that was ever in use at once, and CPython's cache of attributes fills,
which keeps names that C libraries make anew for each look, up to 4096; what grows for ever grows in the second half,
too. Exits 1 if four hours would add more than 1 MB of resident memory, the last quarter has a file or a thread more
than the first, a frame takes 1.1 times the processor time, or the 99th percentile of latency of the last hour (a third
of a shorter run) is over 1.1 times that of the first. Where others were at work, so that threads waited longer for a
processor than they worked or than before, that percentile is reported and not judged.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.command import ROOT, environment, free_port

SAMPLE_S, SCRAPE_S, WARM_S, HOUR_S = 10.0, 5.0, 600.0, 3600.0
BAR_HOURS, GROWTH_BYTES, RATIO = 4.0, 1_000_000, 1.1
CALM = 1.2
"""A wait for processors that grew by more than this comes from others."""
PAGE = os.sysconf("SC_PAGESIZE")

PIPELINE = """
models:
  parts:
    onnx: {assets}/parts.onnx
    task: {{detect: yolox, labels: {assets}/parts.txt, score: 0.4, iou: 0.5}}
    input: {{resize: letterbox, color: rgb, mean: 0, std: 255}}
stages:
  belt: {{source: "python:{pipelines}/conveyor:Conveyor", size: {size}, fps: {fps}, seed: 7, realtime: true}}
  find: {{infer: parts, from: belt}}
  track: {{track: bytetrack, from: find}}
  paint: {{draw: [boxes, labels, trails, stats], from: track}}
  video:
    sink: video
    from: paint
    path: "out/{{date}}-{{time}}.mp4"
    rotate: {{size: 20MB, every: 3min}}
    keep: {{size: 60MB}}
  events: {{sink: jsonl, from: track, path: out/events.jsonl, rotate: {{size: 1MB}}, keep: {{size: 5MB}}}}
  stills: {{sink: images, from: paint, path: "out/{{date}}/{{frame:06d}}.jpg", every: 30, keep: {{size: 5MB}}}}
  page: {{sink: http, from: paint, port: {port}}}
  waits: {{python: "waits:Waits", from: paint}}
"""
WAITS = '''
import struct, time

class Waits:
    """Writes how old each frame is."""

    def open(self):
        self.file = open("waits.bin", "ab", buffering=0)

    def process(self, result):
        self.file.write(struct.pack("<q", time.monotonic_ns() - result.frame.timestamp_ns))

    def close(self):
        self.file.close()
'''


@dataclass(frozen=True)
class Sample:
    """The process at one moment; processor time is of all threads, ``p99_ms`` since the sample before."""

    at_s: float
    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    files: int
    threads: int
    cpu_s: float
    delay_s: float
    frames: int
    p99_ms: float


class Process:
    def __init__(self, process: int, waits: Path) -> None:
        self._proc, self._waits, self._frames = Path(f"/proc/{process}"), waits, 0
        self._delays: dict[str, float] = {}
        self._begun_s = time.monotonic()

    def sample(self) -> Sample:
        rollup = dict(line.split(":", 1) for line in (self._proc / "smaps_rollup").read_text().splitlines()[1:])
        kilobytes = {name: int(text.split()[0]) for name, text in rollup.items()}
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        ages = self._new_ages()
        return Sample(
            at_s=time.monotonic() - self._begun_s,
            rss_bytes=kilobytes["Rss"] * 1024,
            pss_bytes=kilobytes["Pss"] * 1024,
            uss_bytes=(kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) * 1024,
            files=len(list((self._proc / "fd").iterdir())),
            threads=int(fields[17]),
            cpu_s=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            delay_s=self._delay_s(),
            frames=self._frames,
            p99_ms=statistics.quantiles(ages, n=100)[-1] if len(ages) > 1 else 0.0,
        )

    def _new_ages(self) -> list[float]:
        with suppress(FileNotFoundError), self._waits.open("rb") as file:
            file.seek(self._frames * 8)
            data = file.read()
            count = len(data) // 8
            self._frames += count
            return [age / 1e6 for age in struct.unpack(f"<{count}q", data[: count * 8])]
        return []

    def _delay_s(self) -> float:
        for task in (self._proc / "task").iterdir():
            with suppress(OSError):  # of a thread that has ended its last reading stays
                self._delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return sum(self._delays.values())


@dataclass(frozen=True)
class Verdict:
    """What a soak showed; what is per four hours is extrapolated. ``judged_s`` is without the warm-up;
    ``rss_all_bytes`` is of all that, where the other bytes may be of the second half."""

    judged_s: float
    frames: int
    rss_all_bytes: float
    rss_bytes: float
    rss_low_bytes: float
    rss_high_bytes: float
    pss_bytes: float
    uss_bytes: float
    files: int
    threads: int
    cpu_ms: tuple[float, float]
    p99_ms: tuple[float, float]
    delay_ms: tuple[float, float]

    @property
    def is_calm(self) -> bool:
        """Whether nobody else kept the threads from the processors: they waited for one no longer than they worked, and
        at the end no longer than at the beginning."""
        return self.delay_ms[1] <= CALM * self.delay_ms[0] and max(self.delay_ms) <= max(self.cpu_ms)

    def faults(self) -> list[str]:
        slower, later = (last / first if first else 1.0 for first, last in (self.cpu_ms, self.p99_ms))
        checks = {
            f"memory grows by {self.rss_bytes / 1e6:.2f} MB in {BAR_HOURS:g} hours": self.rss_bytes <= GROWTH_BYTES,
            f"{self.files} files more": self.files <= 0,
            f"{self.threads} threads more": self.threads <= 0,
            f"a frame takes {slower:.2f} times the processor time": slower <= RATIO,
            f"the 99th percentile is {later:.2f} times the first": later <= RATIO or not self.is_calm,
        }
        return [text for text, holds in checks.items() if not holds]

    def lines(self) -> list[str]:
        mb = 1e-6
        rss, low, high = (value * mb for value in (self.rss_bytes, self.rss_low_bytes, self.rss_high_bytes))
        pairs = (self.cpu_ms, self.p99_ms, self.delay_ms)
        cpu, p99, delay = (f"{first:.2f} then {last:.2f} ms" for first, last in pairs)
        return [
            f"{self.judged_s / HOUR_S:.2f} hours after the warm-up, {self.frames} frames; in {BAR_HOURS:g} hours:",
            f"  RSS {rss:+.3f} MB (95 %: {low:+.3f} to {high:+.3f}); "
            f"by all after the warm-up {self.rss_all_bytes * mb:+.3f}",
            f"  PSS {self.pss_bytes * mb:+.3f} MB, USS {self.uss_bytes * mb:+.3f} MB",
            f"  files {self.files:+d}, threads {self.threads:+d} (most of the last quarter beside the first)",
            f"  processor time of a frame {cpu}; waited for processors {delay} a frame",
            f"  99th percentile of latency {p99}" + ("" if self.is_calm else ": not judged, others were at work"),
        ]


def judge(samples: list[Sample]) -> Verdict:
    """Of a run's samples. Raises ValueError: there are too few."""
    from scipy.stats import theilslopes  # a second that runs of tests need not spend

    span_s = samples[-1].at_s if samples else 0.0
    warm_s = min(WARM_S, span_s / 6)
    late = [one for one in samples if one.at_s >= warm_s]
    if len(late) < 12:
        raise ValueError("fewer than twelve samples: let it run for longer")
    quarter, window_s = len(late) // 4, min(HOUR_S, (span_s - warm_s) / 3)
    first = [one for one in late if one.at_s <= warm_s + window_s]
    last = [one for one in late if one.at_s >= span_s - window_s]

    settled_s = warm_s if span_s >= BAR_HOURS * HOUR_S - 60 else span_s / 2

    def slopes(name: str, from_s: float = settled_s) -> tuple[float, float, float]:
        minutes: dict[int, list[Sample]] = {}
        for one in (one for one in late if one.at_s >= from_s):
            minutes.setdefault(int(one.at_s // min(60.0, max(SAMPLE_S, span_s / 60))), []).append(one)
        x = [statistics.mean(one.at_s for one in group) for group in minutes.values()]
        y = [statistics.median(getattr(one, name) for one in group) for group in minutes.values()]
        slope, _, low, high = theilslopes(y, x, 0.95)
        return tuple(value * BAR_HOURS * HOUR_S for value in (slope, low, high))  # type: ignore[return-value]

    def more(name: str) -> int:
        return int(
            max(getattr(one, name) for one in late[-quarter:]) - max(getattr(one, name) for one in late[:quarter])
        )

    def per_frame(group: list[Sample], name: str) -> float:
        frames = group[-1].frames - group[0].frames
        return 1e3 * (getattr(group[-1], name) - getattr(group[0], name)) / max(1, frames)

    def latency(group: list[Sample]) -> float:
        return statistics.median(one.p99_ms for one in group)

    rss, low, high = slopes("rss_bytes")
    return Verdict(
        judged_s=late[-1].at_s - late[0].at_s,
        frames=late[-1].frames - late[0].frames,
        rss_all_bytes=slopes("rss_bytes", warm_s)[0],
        rss_bytes=rss,
        rss_low_bytes=low,
        rss_high_bytes=high,
        pss_bytes=slopes("pss_bytes")[0],
        uss_bytes=slopes("uss_bytes")[0],
        files=more("files"),
        threads=more("threads"),
        cpu_ms=(per_frame(first, "cpu_s"), per_frame(last, "cpu_s")),
        p99_ms=(latency(first), latency(last)),
        delay_ms=(per_frame(first, "delay_s"), per_frame(last, "delay_s")),
    )


def watch(port: int, over: threading.Event) -> None:
    while not over.wait(0.5):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as viewer:
            viewer.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not over.is_set() and viewer.recv(1 << 16):
                pass


def scrape(port: int, over: threading.Event) -> None:
    """Prometheus, and a page that shows the state; each request is a connection."""
    paths = ("/metrics", "/stats.json", "/healthz", "/snapshot.jpg")
    number = 0
    while not over.wait(SCRAPE_S):
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", paths[number % len(paths)])
            connection.getresponse().read()
            connection.close()
        number += 1


def soak(asked: argparse.Namespace, folder: Path) -> list[Sample]:
    """Runs the pipeline in ``folder`` for so many hours, or until Ctrl-C. Raises RuntimeError: it ended by itself, or
    badly."""
    port = free_port()
    places = {"assets": ROOT / "pipelines" / "assets", "pipelines": ROOT / "pipelines"}
    (folder / "soak.yaml").write_text(PIPELINE.format(port=port, fps=asked.fps, size=asked.size, **places))
    (folder / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "edgert", "run", "soak.yaml", "--plain", "--json", "summary.json"]
    over, samples = threading.Event(), list[Sample]()
    # In a session of its own, so that a Ctrl-C here does not end it before the last sample.
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=log, stderr=log, start_new_session=True
        ) as child,
    ):
        clients = [threading.Thread(target=one, args=(port, over)) for one in (watch, scrape)]
        for thread in clients:
            thread.start()
        process, begun_s = Process(child.pid, folder / "waits.bin"), time.monotonic()
        try:
            with suppress(KeyboardInterrupt):
                while time.monotonic() - begun_s < asked.hours * HOUR_S:
                    time.sleep(SAMPLE_S)
                    if child.poll() is not None:
                        raise RuntimeError(f"it ended with {child.returncode}: {(folder / 'log').read_text()[-2000:]}")
                    samples.append(process.sample())
                    if asked.json and (len(samples) % 6 == 0):
                        write(asked.json, samples)
        finally:
            over.set()
            child.send_signal(signal.SIGINT)
            ended = child.wait(30)
            for thread in clients:
                thread.join()
        if ended != 0:
            raise RuntimeError(f"it ended with {ended}: {(folder / 'log').read_text()[-2000:]}")
    return samples


def write(path: Path, samples: list[Sample]) -> None:
    data: dict[str, object] = {"samples": [asdict(one) for one in samples]}
    with suppress(ValueError):
        verdict = judge(samples)
        data = {"verdict": asdict(verdict), "faults": verdict.faults(), **data}
    other = path.with_name(f".{path.name}.part")
    other.write_text(json.dumps(data))
    other.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=BAR_HOURS)
    parser.add_argument("--fps", type=float, default=12)
    parser.add_argument("--size", default="640x480")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="for its files, kept; without: one that goes at the end")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="of an earlier run; runs nothing")
    asked = parser.parse_args()
    if asked.judge:
        samples = [Sample(**one) for one in json.loads(asked.judge.read_text())["samples"]]
    else:
        with tempfile.TemporaryDirectory() as made:
            folder = asked.folder or Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            samples = soak(asked, folder)
        if asked.json:
            write(asked.json, samples)
    verdict = judge(samples)
    print("\n".join(verdict.lines()))
    for fault in verdict.faults():
        print(f"FAULT: {fault}")
    return 1 if verdict.faults() else 0


if __name__ == "__main__":
    raise SystemExit(main())
