"""A double of ``edgert.backend.tensorrt.builder``: does what the model's bytes name, without any TensorRT."""

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection

from edgert.backend.tensorrt.build_process import BuildResult, Progress
from edgert.backend.tensorrt.log import LogRecord
from edgert.errors import DeviceError


def main(descriptor: int) -> int:
    pipe = Connection(descriptor)
    deed = pipe.recv().model.decode()
    pipe.send(Progress("Building", "", 0, 2))
    record = LogRecord("WARNING", "Splitting DLA subgraph at: conv because DLA validation failed.", "refused", "conv")
    pipe.send(record)
    if deed == "crash":
        print("something a library printed", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "exit":
        return 3
    if deed == "refuse":
        pipe.send(DeviceError("there is no dla1", why="none", fix="another board").to_json())
        return 1
    if deed == "stubborn":
        threading.Event().wait()
    if deed == "patient":
        pipe.recv()
        return 1
    pipe.send(BuildResult(b"plan", b"", (record,), "", (), (), "TensorRT 10.3.0", 1.0))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
