"""A double of ``edgert.backend.tensorrt.builder``: does what the model's bytes name, without any TensorRT."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from edgert.backend.tensorrt.build_process import BuildResult, read_request, write_error, write_result
from edgert.backend.tensorrt.log import classify
from edgert.errors import DeviceError


def main(folder: Path, descriptor: int) -> int:
    deed = read_request(folder).model.decode()

    def send(**event: object) -> None:
        os.write(descriptor, json.dumps(event).encode() + b"\n")

    send(step={"phase": "Building", "parent": "", "step": 0, "steps": 2})
    text = "Splitting DLA subgraph at: conv because DLA validation failed."
    send(log={"severity": "WARNING", "text": text, "kind": "refused", "layer": "conv"})
    if deed == "crash":
        print("something a library printed", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "exit":
        return 3
    if deed == "refuse":
        write_error(DeviceError("there is no dla1", why="none", fix="another board"), folder)
        return 1
    if deed == "stubborn":
        threading.Event().wait()
    if deed == "patient":
        while not (folder / "cancel").exists():
            threading.Event().wait(0.01)
        return 1
    write_result(BuildResult(b"plan", b"", (classify("INFO", text),), "", (), (), "TensorRT 10.3.0", 1.0), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
