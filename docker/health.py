"""Health check of a container: whether its pipeline answers and no stage is stuck in a call.

It asks over HTTP at EDGERT_HEALTH, the ``/healthz`` or ``/readyz`` of a page, else over the control socket, as ``edgert
top`` does. The exit code is HEALTHCHECK's: 0 or 1. Docker runs this every minute beside a pipeline that wants the
processor, so it imports neither edgert nor anything else that takes long: ``edgert doctor`` would take seconds and open
the GPU.
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path

WAIT_S = 10.0
MOST_BYTES = 4096
"""Maximum number of bytes shown of a page's answer."""


def sockets() -> list[Path]:
    """Return the sockets of pipelines, including those of killed ones; see ``edgert/control/control_socket.py``."""
    folders = (Path(os.environ.get("XDG_RUNTIME_DIR", "/"), "edgert"), Path(f"/tmp/edgert-{os.geteuid()}"))  # noqa: S108
    return [path for folder in folders for path in sorted(folder.glob("*.sock"))]


def main(url: str) -> int:
    """Return the exit code: 0 if the pipeline of this container answers."""
    try:
        if url:
            import ssl
            from urllib.request import urlopen

            trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the page's certificate names the board, not 127.0.0.1
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            with urlopen(url, timeout=WAIT_S, context=trusting) as answer:  # noqa: S310 - set by who starts the container
                return int(answer.status != 200)
        if any(map(answers, sockets())):
            return 0
        sys.stderr.write("no pipeline runs in this container\n")
    except (OSError, ValueError, LookupError) as error:
        more = error.read(MOST_BYTES).decode("utf-8", "replace") if hasattr(error, "read") else ""
        sys.stderr.write(f"{url or 'the pipeline'} is not well: {error} {more}\n")
    return 1


def answers(path: Path) -> bool:
    """Return whether a pipeline of this container answers at a socket. Raises ValueError for one with a stuck stage."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(WAIT_S)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):  # it has ended
            return False
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
        pid, user, _ = struct.unpack("iII", peer)
        if not pid or user != os.geteuid():  # on the host's network: of another container, or another user's
            return False
        client.sendall(b'{"verb":"show"}\n')
        shown = json.loads(b"".join(iter(lambda: client.recv(1 << 16), b"")))["result"]
        stages = shown["stats"].get("stages", {})
    for name, stage in stages.items():
        if stage.get("stuck_s"):
            raise ValueError(f"stage {name} has been in one call for {stage['stuck_s']:.0f} s")
    return True


if __name__ == "__main__":
    sys.exit(main(os.environ.get("EDGERT_HEALTH", "")))
