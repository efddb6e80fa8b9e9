"""Keys of ssh-keygen, and files of those who may sign."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.sshd import keygen


def key(folder: Path, name: str = "key") -> Path:
    """A private key without a passphrase; skips the test where there is no ssh-keygen."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen here: apt install openssh-client")
    path = folder / name
    if not path.exists():
        keygen(path)
    return path


def signers(folder: Path, key: Path, options: str = "", identity: str = "alice@example.com") -> Path:
    path = folder / f"signers-{key.name}"
    path.write_text(f"{identity} {options} {key.with_name(f'{key.name}.pub').read_text()}")
    return path
