"""What the host does per frame of a file that the GPU's decoder decodes: packets read, given over, and images lent.

    python tests/bench/bench_nvdec_host.py [--json FILE]

PyNvVideoCodec and the GPU are stand-ins that do nothing, at once; FFmpeg reads a real 1080p H.264 file. Processor time
of the source's thread from the hundredth frame on, the frames given back at once; packets one at a time, as of a
camera, and as of a file. Needs no GPU.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.stages.source import nvdec
from edgert.stages.source.files import VideoFile
from edgert.stages.source.kinds import source_for
from tests.bench.bench_gpu_files import long_clip
from tests.bench.report import main
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.nvdec_double import NvdecDouble

BAR_US, ROUNDS, FIRST, SURFACES = 100.0, 5, 100, 16


class IdleDecoder:
    """Has an image for every packet, in memory that nobody looks at."""

    def __init__(self) -> None:
        self._count = 0

    def GetNumDecodedFrame(self, packet: Any) -> int:
        return nvdec.FILE_BATCH if packet.bsl else 0

    def GetLockedFrame(self) -> int:
        self._count += 1
        return (1 + self._count % SURFACES) << 23

    def UnlockFrame(self, address: int) -> None: ...

    def GetWidth(self) -> int:
        return 1920

    def GetHeight(self) -> int:
        return 1080


class IdleNvdec(NvdecDouble):
    def CreateDecoder(self, **options: Any) -> Any:
        return IdleDecoder()


def frame_us(path: Path, device: CudaDevice) -> float:
    source = cast("VideoFile", source_for("cam", SourceStage(source=str(path)), Counter(), REAL, Path()))
    if reason := source.on_gpu(device):
        raise SystemExit(reason)
    count, started = 0, 0.0
    for frame in source.frames(threading.Event()):
        frame.lease.release()
        count += 1
        started = time.thread_time() if count == FIRST else started
    taken = time.thread_time() - started
    source.close()
    return taken / (count - FIRST) * 1e6


def measure() -> Iterator[Figure]:
    device = CudaDevice(CudaDouble(), 0, Counter())
    sys.modules["PyNvVideoCodec"] = cast("Any", IdleNvdec(device))
    found: dict[int, list[float]] = {1: [], nvdec.FILE_BATCH: []}
    with tempfile.TemporaryDirectory() as folder:
        path = long_clip(Path(folder) / "long.mp4")
        for _ in range(ROUNDS):
            for batch in found:
                nvdec.FILE_BATCH = batch
                found[batch].append(frame_us(path, device))
    for batch, taken in found.items():
        title = f"a frame of a decoder that takes no time, packets by {batch}"
        yield Figure(title, statistics.median(taken), "µs", BAR_US, "lower", ROUNDS)


if __name__ == "__main__":
    main(__doc__ or "", measure)
