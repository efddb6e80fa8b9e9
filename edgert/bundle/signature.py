"""Signatures of bundles by ``ssh-keygen -Y``, with existing SSH keys and files of ``allowed_signers``.

A signature covers the manifest, which lists the SHA-256 of every member, and so the complete bundle. ``ssh-keygen`` can
verify it without edgert: the signature is the member ``manifest.json.sig``.
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
"""Purpose of signatures. Those for another purpose, such as of commits, are refused."""
SIGNERS = Path("/etc/edgert/allowed_signers")
"""Keys whose bundles start on this machine. Without this file and ``--signers``, unsigned bundles start, too."""
_VERIFY_S, _SIGN_S = 10.0, 120.0
"""Time limits of ``ssh-keygen``. To sign, somebody may have to type a passphrase or touch a key."""
_KEY = re.compile(r"with (\S+ key \S+)")


@dataclass(frozen=True, slots=True)
class Signer:
    """Signer of a bundle.

    Attributes:
        key: kind and fingerprint in ssh-keygen's form: ``ED25519 key SHA256:…``.
        identity: name in the file of allowed signers; empty without such a file.
    """

    key: str
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.identity}, {self.key}" if self.identity else self.key


def signers_here(given: Path | None) -> Path | None:
    """Return the file of allowed signers, by default this machine's; None if there is none and any bundle may start.

    Raises:
        ArtifactError: the file cannot be read.
    """
    path = given or SIGNERS
    try:
        path.open("rb").close()
    except OSError as error:
        if given is None and isinstance(error, FileNotFoundError):
            return None
        fix = "name a file with lines of allowed signers: NAME KEYTYPE KEY (man ssh-keygen)"
        raise ArtifactError(f"cannot read the allowed signers {str(path)!r}", why=cause(error), fix=fix) from error
    return path


def sign(content: bytes, key: Path) -> bytes:
    """Return the signature of some bytes.

    ``key`` is the file of a private key; or of a public key, whose private key ``ssh-agent`` has.

    Raises:
        ArtifactError: ssh-keygen cannot sign with the key.
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
    """Return who signed some bytes; None if they are unsigned and need no signature.

    Args:
        content: signed bytes.
        signature: signature of the bytes; empty for none.
        signers: file of allowed signers; None: anyone may sign, and a signature is optional.
        where: path of the bundle, for errors.

    Raises:
        ArtifactError: the bytes are unsigned, were changed, or their signer is not allowed.
    """
    if not signature:
        if signers is None:
            return None
        raise _refusal(where, "it is not signed", f"only bundles signed by a key of {signers} start here")
    with tempfile.NamedTemporaryFile(prefix="edgert-", suffix=".sig") as file:
        file.write(signature)
        file.flush()
        checked = _ssh_keygen(["check-novalidate", "-n", NAMESPACE, "-s", file.name], content, _VERIFY_S)
        if checked.returncode:
            raise _refusal(where, "its signature is not that of its content", _first_line(checked))
        named = _KEY.search(checked.stdout.decode(errors="replace"))
        key = named[1] if named else "a key that ssh-keygen does not name"
        if signers is None:
            return Signer(key)
        found = _ssh_keygen(["find-principals", "-s", file.name, "-f", str(signers)], b"", _VERIFY_S)
        if found.returncode:
            why = f"it is signed by {key}, which is none of {signers}"
            raise _refusal(where, why, _first_line(found))
        name = found.stdout.decode(errors="replace").splitlines()[0]
        words = ["verify", "-n", NAMESPACE, "-s", file.name, "-f", str(signers), "-I", name]
        checked = _ssh_keygen(words, content, _VERIFY_S)
        if checked.returncode:
            raise _refusal(where, f"{signers} does not let {name} sign bundles", _first_line(checked))
        return Signer(key, name)


def _ssh_keygen(words: Sequence[str], content: bytes, limit_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run ``ssh-keygen -Y`` on some bytes. Raises DeviceError if it cannot be started, or takes too long."""
    command = ["ssh-keygen", "-Y", *words]
    try:
        return subprocess.run(  # noqa: S603 - no shell, and every word is ours or the name of a file
            command,
            input=content,
            capture_output=True,
            timeout=limit_s,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        why = f"it signs and verifies bundles: {cause(error)}"
        raise DeviceError("cannot run ssh-keygen", why=why, fix="sudo apt install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        why = f"ssh-keygen -Y {words[0]} took longer than {limit_s:g} s"
        fix = "use a key without a passphrase, or ssh-add KEY first and --sign KEY.pub"
        raise DeviceError("ssh-keygen does not answer", why=why, fix=fix) from error


def _first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr + done.stdout).decode(errors="replace").splitlines()
    return next(filter(str.strip, lines), f"ssh-keygen ended with {done.returncode}")


def _refusal(where: str, why: str, detail: str) -> ArtifactError:
    return ArtifactError(
        f"{where} is refused",
        why=f"{why}: {detail}",
        fix="run edgert build BUNDLE --sign KEY with a key that is allowed here; or copy the bundle again",
        code="E603",
    )
