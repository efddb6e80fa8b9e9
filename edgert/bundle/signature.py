"""Signatures of bundles, made and verified by ``ssh-keygen -Y``: with keys and ``allowed_signers`` that people have.

A signature covers the manifest, which lists the SHA-256 of every member. So it covers all that a bundle contains.
``ssh-keygen`` can verify it without edgert: the signature is the member ``manifest.json.sig``.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import ArtifactError, DeviceError, cause

NAMESPACE = "edgert"
"""Purpose of a signature: one that was made for something else, such as a commit, is refused."""
SIGNERS = Path("/etc/edgert/allowed_signers")
"""The keys whose bundles start on this machine; without this file and ``--signers`` unsigned bundles start, too."""
_VERIFY_S, _SIGN_S = 10.0, 120.0
"""Longest time of ``ssh-keygen``; to sign, someone may have to type a passphrase or touch a key."""
_KEY = re.compile(r"with (\S+ key \S+)")


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed a bundle.

    Attributes:
        key: kind and fingerprint, as ssh-keygen shows them: ``ED25519 key SHA256:…``.
        identity: the name in the file of allowed signers; empty where none was asked.
    """

    key: str
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.identity}, {self.key}" if self.identity else self.key


def signers_here(given: Path | None) -> Path | None:
    """Return the file of allowed signers: the given one, else this machine's; None where any bundle may start.

    Raises:
        ArtifactError: there is one, and it cannot be read.
    """
    path = given or SIGNERS
    try:
        path.open("rb").close()
    except FileNotFoundError as error:
        if given is None:
            return None
        raise _unreadable(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    return path


def _unreadable(path: Path, error: OSError) -> ArtifactError:
    fix = "a file of allowed_signers, a line each: NAME KEYTYPE KEY (man ssh-keygen)"
    return ArtifactError(f"cannot read the allowed signers {str(path)!r}", why=cause(error), fix=fix)


def sign(content: bytes, key: Path) -> bytes:
    """Return the signature of some bytes.

    Args:
        content: what is signed.
        key: a private key; or a public one, whose private key ``ssh-agent`` has.

    Raises:
        ArtifactError: ssh-keygen cannot sign with it.
    """
    done = _ssh_keygen(["sign", "-f", str(key), "-n", NAMESPACE], content, _SIGN_S)
    if done.returncode:
        raise ArtifactError(
            f"cannot sign with {str(key)!r}",
            why=_first_line(done),
            fix="name a private key of ssh-keygen, or the .pub of one that ssh-agent has",
        )
    return done.stdout


def verify(content: bytes, signature: bytes, signers: Path | None, where: str) -> Signer | None:
    """Return who signed some bytes; None where they are unsigned and may be.

    Args:
        content: what was signed.
        signature: of it; empty for none.
        signers: the file of those who may sign; None: only the signature is verified.
        where: the bundle, for errors.

    Raises:
        ArtifactError: they are unsigned, changed, or signed by none of the signers.
    """
    if not signature:
        if signers is None:
            return None
        raise _refused(where, "it is not signed", f"only bundles signed by a key of {signers} start here")
    with tempfile.NamedTemporaryFile(prefix="edgert-", suffix=".sig") as file:
        file.write(signature)
        file.flush()
        checked = _ssh_keygen(["check-novalidate", "-n", NAMESPACE, "-s", file.name], content, _VERIFY_S)
        if checked.returncode:
            raise _refused(where, "its signature is not that of its content", _first_line(checked))
        key = _key_of(checked)
        if signers is None:
            return Signer(key)
        found = _ssh_keygen(["find-principals", "-s", file.name, "-f", str(signers)], b"", _VERIFY_S)
        if found.returncode:
            why = f"it is signed by {key}, which is none of {signers}"
            raise _refused(where, why, _first_line(found))
        name = found.stdout.decode(errors="replace").splitlines()[0]
        words = ["verify", "-n", NAMESPACE, "-s", file.name, "-f", str(signers), "-I", name]
        checked = _ssh_keygen(words, content, _VERIFY_S)
        if checked.returncode:
            raise _refused(where, f"{signers} does not let {name} sign bundles", _first_line(checked))
        return Signer(key, name)


def _ssh_keygen(words: Sequence[str], content: bytes, most_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` on some bytes. Raises DeviceError: it is missing, or takes too long."""
    command = ["ssh-keygen", "-Y", *words]
    try:
        return subprocess.run(  # noqa: S603 - no shell, and every word is ours or the name of a file
            command,
            input=content,
            capture_output=True,
            timeout=most_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError as error:
        fix = "sudo apt install openssh-client"
        raise DeviceError("there is no ssh-keygen", why="it signs and verifies bundles", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        why = f"ssh-keygen -Y {words[0]} took longer than {most_s:g} s"
        fix = "a key without a passphrase, or ssh-add KEY first and --sign KEY.pub"
        raise DeviceError("ssh-keygen does not answer", why=why, fix=fix) from error


def _key_of(done: subprocess.CompletedProcess[bytes]) -> str:
    found = _KEY.search(done.stdout.decode(errors="replace"))
    return found[1] if found else "a key that ssh-keygen does not name"


def _first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr + done.stdout).decode(errors="replace").splitlines()
    return next(filter(str.strip, lines), f"ssh-keygen ended with {done.returncode}")


def _refused(where: str, why: str, more: str) -> ArtifactError:
    return ArtifactError(
        f"{where} is refused",
        why=f"{why}: {more}",
        fix="edgert build BUNDLE --sign KEY, with a key that is allowed here; or copy the bundle again",
        code="E603",
    )
