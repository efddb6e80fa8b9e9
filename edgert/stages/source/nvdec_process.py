"""Files that NVDEC decodes in a process of its own, one for each GPU, where a pipeline works on several.

In one process, threads that decode on two GPUs wait for each other in the CUDA driver and for Python's lock: together
they were slower than on one (docs/gpu.md has the numbers of today). That process reads the file and decodes it, by the
same code as here; images stay where its decoder wrote them, and this process maps that memory.

Requests and answers, in the byte order of the machine; an answer begins with its size:

- request, for some more images: how many surfaces come back, and their addresses there
- answer: state, images, width, height, surfaces that are new, packets read and skipped so far; of each image its
  address there and its time in the stream; of each new surface its address, its place in its allocation, and the
  allocation's handle. Instead of images, an error as JSON
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize

from edgert import installation
from edgert.clock import Clock
from edgert.errors import DeviceError, error_of
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans
from edgert.memory.cuda.ipc import HANDLE_BYTES, Mapped
from edgert.runtime.frame import Color
from edgert.stages.source.nvdec import PROCESSES
from edgert.stages.source.planes import device_planes
from edgert.stages.source.timeline import Image

BURST = 8
"""The most images of an answer."""
_AHEAD = 2
"""Requests under way: it decodes while this process does something else."""
HEAD, IMAGE, NEW = struct.Struct("=7I"), struct.Struct("=Qq"), struct.Struct(f"=QQ{HANDLE_BYTES}s")
MORE, END, FAILED = range(3)
UNTIMED = -(2**63)
MESSAGE_BYTES, _ANSWER_BYTES = 1 << 14, 1 << 12
_PATIENCE_S, _END_S = 30.0, 5.0
_SERVER = "edgert.stages.source.nvdec_server"


class DecoderProcess:
    """The process that decodes on one GPU. It ends with this object, and with this process.

    Raises:
        DeviceError: it does not start, or memory cannot be shared with it.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", _SERVER, str(theirs.fileno()), str(device.ordinal)]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, run by our own interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # where this process writes results, maybe
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches this process, which then ends that one
                env={**os.environ, "PYTHONPATH": installation.python_path(), PROCESSES: "thread"},
            )
        self._turn = threading.Lock()
        finalize(self, _end, self._control, self._process)
        self._control.settimeout(_PATIENCE_S)
        try:
            hello = json.loads(self._control.recv(MESSAGE_BYTES) or b'{"error": "it ended at once"}')
        except (OSError, ValueError) as error:
            hello = {"error": f"it does not answer: {error}"}
        if "error" in hello:
            raise DeviceError("a process for NVDEC does not start", why=hello["error"])
        Mapped(device, bytes.fromhex(hello["handle"])).close()  # whether that can be done here

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def read(self, path: str, where: str) -> socket.socket:
        """The way to a file's images, which are decoded as long as it is open. Raises OSError."""
        mine, theirs = socket.socketpair()
        with theirs, self._turn:
            socket.send_fds(self._control, [json.dumps([path, where]).encode()], [theirs.fileno()])
        return mine


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()  # the process ends when it sees that
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_STARTING = threading.Lock()
_BY_GPU: WeakValueDictionary[int, DecoderProcess] = WeakValueDictionary()
_KEPT: WeakKeyDictionary[CudaDevice, DecoderProcess] = WeakKeyDictionary()


def process_for(device: CudaDevice) -> DecoderProcess:
    """That of a GPU, which lives as long as the device does; started if there is none. Raises DeviceError."""
    with _STARTING:
        process = _BY_GPU.get(device.ordinal)
        if process is None or not process.runs:
            process = DecoderProcess(device)
        _BY_GPU[device.ordinal] = _KEPT[device] = process
        return process


class RemoteFile:
    """The images of a file that the other process reads; else as :class:`.nvdec.Nvdec`.

    Args:
        way: to that file.
        color: of all images.
        counted: called now and then with how many packets were read and skipped so far.

    Attributes:
        at_hand: images that are decoded and not given out yet.
    """

    title = "NVDEC, in a process of its own"

    def __init__(
        self,
        device: CudaDevice,
        way: socket.socket,
        counter: Counter,
        clock: Clock,
        color: Color,
        counted: Callable[[int, int], None],
    ) -> None:
        self._device, self._way, self._clock, self._color, self._counted = device, way, clock, color, counted
        self._stream = device.stream()  # nothing is ever put there: images are whole when they come
        self._mapped: dict[bytes, Mapped] = {}
        self._here: dict[int, int] = {}
        self._there: dict[int, int] = {}
        self._free = deque[int]()
        self._loans = Loans(device, counter, self._unlock)
        self._buffer = bytearray(_ANSWER_BYTES)
        self.at_hand = 0
        way.settimeout(_PATIENCE_S)

    def __del__(self) -> None:
        for mapped in self._mapped.values():  # before the other process frees it
            mapped.close()
        self._way.close()

    @property
    def lent(self) -> int:
        """Surfaces that were not given back yet."""
        return self._loans.lent

    def images(self, packets: object = None) -> Iterator[Image]:
        """Images in the order of display; ``packets`` are read by the other process. Raises EdgertError."""
        try:
            for _ in range(_AHEAD):
                self._ask()
            while images := self._answered():
                self._ask()
                for number, (key, media_ns) in enumerate(images, 1):
                    self.at_hand = len(images) - number
                    yield self._image(self._here[key], None if media_ns == UNTIMED else media_ns)
        except OSError as error:
            why = str(error) or type(error).__name__
            raise DeviceError("the process that decodes on this GPU has ended", why=why, fix="decode: cpu") from error

    def close(self) -> None:
        """Asks for no more, and waits for the GPU's work with surfaces that came back."""
        self._loans.close()

    def _unlock(self, address: int) -> None:
        self._free.append(self._there[address])

    def _ask(self) -> None:
        self._loans.settle()
        keys = [self._free.popleft() for _ in range(len(self._free))]
        self._way.sendall(struct.pack(f"=I{len(keys)}Q", len(keys), *keys))

    def _answered(self) -> list[tuple[int, int]]:
        """Addresses there and times of some images; none at the end."""
        answer = self._received()
        state, count, *size, new, packets, skipped = HEAD.unpack_from(answer)
        self._counted(packets, skipped)
        if state == FAILED:
            raise error_of(json.loads(bytes(answer[HEAD.size :])))
        self._size = size[0], size[1]
        at, stop = HEAD.size, HEAD.size + count * IMAGE.size
        for key, offset, handle in NEW.iter_unpack(answer[stop : stop + new * NEW.size]):
            self._map(key, offset, handle)
        return list(IMAGE.iter_unpack(answer[at:stop]))

    def _received(self) -> memoryview:
        """One answer, valid until the next."""
        view = memoryview(self._buffer)
        fill(self._way, view[:4])
        size = int.from_bytes(view[:4], sys.byteorder)
        if size > len(view):
            self._buffer = bytearray(size)
            view = memoryview(self._buffer)
        fill(self._way, view[:size])
        return view[:size]

    def _map(self, key: int, offset: int, handle: bytes) -> None:
        mapped = self._mapped.get(handle)
        if mapped is None:
            mapped = self._mapped[handle] = Mapped(self._device, handle)
        address = mapped.address + offset
        self._here[key], self._there[address] = address, key

    def _image(self, address: int, media_ns: int | None) -> Image:
        lease, (width, height) = self._loans.lend(address), self._size
        rows = (address, width), (address + width * height, width)
        planes = device_planes("nv12", (width, height), rows, lease, self._device, self._stream)
        return Image("nv12", planes, lease, self._clock.now_ns(), media_ns, color=self._color)


def fill(way: socket.socket, view: memoryview) -> None:
    """Receives so many bytes. Raises OSError where nobody sends any more."""
    while len(view):
        count = way.recv_into(view)
        if not count:
            raise ConnectionResetError("it closed the connection")
        view = view[count:]
