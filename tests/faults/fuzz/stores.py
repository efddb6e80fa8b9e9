"""What edgert keeps on a disk and sends to others: galleries, spools, and what receivers answer."""

import io
import json
import shutil
import socket
import threading
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np

from edgert.config import SinkStage
from edgert.errors import EdgertError
from edgert.stages.gallery import Gallery
from edgert.stages.sink.send.segment import Message
from edgert.stages.sink.send.sender import RefusedError
from edgert.stages.sink.send.spool import Spool
from edgert.stages.sink.send.webhook import WebhookPublisher
from tests.faults.fuzz import mutate
from tests.helpers.damage import damaged

_MESSAGES, _PATIENCE_S, _HURRY_S = 60, 30.0, 0.3
_MESSAGE = Message(1, 0.0, "result", "gate", "", b'{"id":"a-1"}')

ANSWERS = (
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: x\r\n\r\nok",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 202 Accepted\r\nConnection: close\r\n\r\nlater",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://localhost/\r\nContent-Length: 0\r\n\r\n",
)


def galleries() -> tuple[bytes, ...]:
    names, vectors = np.array(["Anna", "Änne", "南"]), np.eye(3, 8, dtype=np.float32)
    found = [json.dumps({name: [row] for name, row in zip(names.tolist(), vectors.tolist(), strict=True)}).encode()]
    for save in (np.savez, np.savez_compressed):
        memory = io.BytesIO()
        save(memory, names=names, vectors=vectors)
        found.append(memory.getvalue())
    return tuple(found)


def mutated_gallery(rng: Random, data: bytes) -> bytes:
    """Return one that is changed: by its structure, by its bytes, or a member of it under a digest that is right."""
    if not data.startswith(b"PK"):
        return mutate.mutated_json(rng, data)
    if rng.random() < 0.5:
        return mutated(rng, data)
    memory = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, mutate.mutated_bytes(rng, content) if rng.random() < 0.7 else content)
    return memory.getvalue()


def mutated(rng: Random, data: bytes) -> bytes:
    return damaged(data, rng) if rng.random() < 0.5 else mutate.mutated_bytes(rng, data)


def tried_gallery(content: bytes) -> bool:
    """Read a gallery, match with it and add to it; a running one goes on with what it has."""
    path = Path("g.npz" if content.startswith((b"PK", b"\x93")) else "g.json")
    path.unlink(missing_ok=True)
    with patch("edgert.stages.gallery._POLL_S", 0.0):
        running = Gallery(path)
        running.add("Anna", np.eye(8)[0])
        path.write_bytes(content)
        running.match(np.ones(8, np.float32))
        try:
            found = Gallery(path)
            found.match(np.ones(8, np.float32))
            found.add("Ben", np.ones(8))
        except EdgertError as error:
            assert path.name in str(error), str(error)
            return False
    return True


@cache
def spool() -> bytes:
    folder = Path("spool-seed")
    one = Spool(folder, 1 << 30, 1e9, "seed")
    for number in range(_MESSAGES):
        one.put("event", "gate", "yard", b'{"n":%d,"x":"%s"}' % (number, b"x" * (number % 5 * 300)))
    one.close()
    (file,) = folder.glob("*.spool")
    content = file.read_bytes()[: 64 << 10]
    shutil.rmtree(folder)
    return content


def tried_spool(content: bytes) -> bool:
    """Open a spool of which the file is changed, and send what is in it: it never fails."""
    folder = Path("spool-case")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / f"{0:016x}.spool").write_bytes(content)
    one = Spool(folder, 1 << 30, 1e9, "case")
    one.trim()
    count = 0
    while messages := one.oldest(16):
        count += len(messages)
        for message in messages:
            json.loads(message.body)
        one.remove(messages)
        one.secure()
    one.put("event", "gate", "yard", b"{}")
    assert one.path is not None, "it is in memory alone"
    assert len(one.oldest(9)) == 1, "what comes after damage is not kept"
    one.close()
    return count >= _MESSAGES


def tried_answer(content: bytes) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.settimeout(_PATIENCE_S)
                while b"\r\n\r\n" not in client.recv(1 << 16):
                    pass
                client.sendall(content)

        answering = threading.Thread(target=serve, daemon=True)
        answering.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        config = SinkStage.model_validate({"sink": "webhook", "from": "track", "server": address})
        publisher = WebhookPublisher(config, "tiny")
        exchange = "edgert.stages.sink.send.webhook"
        try:
            with patch(f"{exchange}.EXCHANGE_S", _HURRY_S), patch(f"{exchange}.BODY_S", _HURRY_S):
                publisher.connect()
                publisher.send([_MESSAGE])
        except (OSError, RefusedError):
            return False
        finally:
            publisher.close()
            answering.join(_PATIENCE_S)
    return True
