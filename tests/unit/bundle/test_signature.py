"""Signed bundles: nothing that was changed, or signed by anybody else, is accepted."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgert import limits
from edgert.bundle import signature
from edgert.bundle.bundle import SIGNATURE, open_bundle, save_bundle, sign_bundle
from edgert.bundle.manifest import NAME
from edgert.bundle.signature import signers_here
from edgert.compiler.unpack import unpacked
from edgert.errors import ArtifactError, DeviceError
from tests.helpers.bundles import MEMBERS, bundle, manifest_of, packed
from tests.helpers.command import in_process
from tests.helpers.signing import key, signers
from tests.helpers.workstation import bundle_for_any


@dataclass
class Signed:
    """A signed bundle, its key, and the file that allows it."""

    path: Path
    key: Path
    signers: Path


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    made = key(tmp_path)
    path = bundle(tmp_path / "dock.edgert")
    sign_bundle(path, made)
    return Signed(path, made, signers(tmp_path, made))


def members_of(path: Path) -> dict[str, bytes]:
    with open_bundle(path) as opened:
        content = {name: opened.read(name) for name in opened.manifest.members}
        return {**content, NAME: opened.manifest.to_bytes(), SIGNATURE: opened.signature}


def refused(path: Path, allowed: Path | None) -> str:
    with open_bundle(path) as opened, pytest.raises(ArtifactError, match="is refused") as caught:
        opened.signer(allowed)
    assert caught.value.code == "E603"
    return caught.value.why


def test_who_signed_it_is_known(tmp_path: Path) -> None:
    made = key(tmp_path)
    path = bundle(tmp_path / "dock.edgert")
    signer = sign_bundle(path, made)
    assert signer.key.startswith("ED25519 key SHA256:") and signer.identity == ""
    with open_bundle(path) as opened:
        found = opened.signer(signers(tmp_path, made))
        assert found is not None and str(found) == f"alice@example.com, {signer.key}"
        assert opened.signer(None) == signer


def test_signing_again_writes_nothing_and_another_key_replaces_the_first(signed: Signed, tmp_path: Path) -> None:
    before = signed.path.stat()
    sign_bundle(signed.path, signed.key)
    assert signed.path.stat().st_ino == before.st_ino
    assert not save_bundle(signed.path, manifest_of(), MEMBERS), "an equal bundle keeps its signature"
    sign_bundle(signed.path, key(tmp_path, "other"))
    assert "which is none of" in refused(signed.path, signed.signers)


def test_ssh_keygen_alone_verifies_it(signed: Signed, tmp_path: Path) -> None:
    """As docs/fleet.md shows it."""
    for name in (NAME, SIGNATURE):
        (tmp_path / name).write_bytes(members_of(signed.path)[name])
    words = ["-f", str(signed.signers), "-I", "alice@example.com", "-n", "edgert", "-s", str(tmp_path / SIGNATURE)]
    done = subprocess.run(["ssh-keygen", "-Y", "verify", *words], input=(tmp_path / NAME).read_bytes(), check=False)
    assert done.returncode == 0


def changed_member(content: dict[str, bytes]) -> dict[str, bytes]:
    """Another model, and a manifest that lists it: all digests are right."""
    model = bytearray(content["models/parts/model.onnx"])
    model[7] ^= 1
    members = {**MEMBERS, "models/parts/model.onnx": bytes(model)}
    return {**members, NAME: manifest_of(members).to_bytes(), SIGNATURE: content[SIGNATURE]}


def changed_manifest(content: dict[str, bytes]) -> dict[str, bytes]:
    """The same members for another board."""
    return {**content, NAME: manifest_of(board="host", mode="", tensorrt="").to_bytes()}


def more_members(content: dict[str, bytes]) -> dict[str, bytes]:
    members = {**MEMBERS, "own.py": b"import os"}
    return {**members, NAME: manifest_of(members).to_bytes(), SIGNATURE: content[SIGNATURE]}


def of_another_purpose(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, SIGNATURE: content["commit.sig"]}


def damaged_signature(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, SIGNATURE: content[SIGNATURE].replace(b"A", b"B")}


def no_signature_at_all(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, SIGNATURE: b"trust me"}


@pytest.mark.parametrize(
    "change",
    [changed_member, changed_manifest, more_members, of_another_purpose, damaged_signature, no_signature_at_all],
)
@pytest.mark.parametrize("requires", [True, False])
def test_what_was_changed_since_is_refused(
    signed: Signed, change: Callable[[dict[str, bytes]], dict[str, bytes]], requires: bool
) -> None:
    """Even where no signature is required: a wrong one is no reason to go on."""
    content, words = members_of(signed.path), ["ssh-keygen", "-Y", "sign", "-f", str(signed.key), "-n", "git"]
    content["commit.sig"] = subprocess.run(words, input=content[NAME], capture_output=True, check=True).stdout
    forged = change(content)
    forged.pop("commit.sig", None)
    signed.path.write_bytes(packed(forged))
    assert "its signature is not that of its content" in refused(signed.path, signed.signers if requires else None)


def test_one_changed_byte_anywhere_is_noticed(signed: Signed) -> None:
    content = signed.path.read_bytes()
    for at in range(0, len(content), 97):
        signed.path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ArtifactError):
            open_bundle(signed.path)


def test_an_unsigned_bundle_starts_where_no_signature_is_required_only(tmp_path: Path) -> None:
    path, allowed = bundle(tmp_path / "dock.edgert"), signers(tmp_path, key(tmp_path))
    with open_bundle(path) as opened:
        assert opened.signer(None) is None
    assert "it is not signed" in refused(path, allowed)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('valid-before="20200101"', "key has expired"),
        ('namespaces="git"', "does not let alice@example.com sign bundles"),
    ],
)
def test_a_key_that_is_too_old_or_for_another_purpose_is_refused(signed: Signed, options: str, why: str) -> None:
    allowed = signers(signed.path.parent, signed.key, options)
    with open_bundle(signed.path) as opened, pytest.raises(ArtifactError, match="is refused") as caught:
        opened.signer(allowed)
    assert why in caught.value.why


def test_without_ssh_keygen_nothing_is_accepted_and_the_fix_installs_it(
    signed: Signed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for why in ("No such file", "Permission denied"):  # the second time there is one that may not be run
        with open_bundle(signed.path) as opened, pytest.raises(DeviceError, match="cannot run ssh-keygen") as caught:
            opened.signer(signed.signers)
        assert caught.value.fix == "sudo apt install openssh-client" and why in caught.value.why
        (tmp_path / "ssh-keygen").touch()


def test_an_ssh_keygen_that_hangs_is_ended(signed: Signed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "ssh-keygen"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(signature, "_VERIFY_S", 0.1)
    with open_bundle(signed.path) as opened, pytest.raises(DeviceError, match="does not answer"):
        opened.signer(signed.signers)


def test_what_is_no_key_cannot_sign_and_leaves_the_bundle_as_it_was(tmp_path: Path) -> None:
    key(tmp_path)
    path, no_key = bundle(tmp_path / "dock.edgert"), tmp_path / "no-key"
    no_key.write_text("no key")
    no_key.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="cannot sign with"):
        sign_bundle(path, no_key)
    assert path.read_bytes() == before


def test_a_signature_of_any_length_is_not_read(signed: Signed) -> None:
    content = {**members_of(signed.path), SIGNATURE: bytes(limits.SIGNATURE_BYTES + 1)}
    signed.path.write_bytes(packed(content))
    with pytest.raises(ArtifactError, match="is damaged"):
        open_bundle(signed.path)


def test_the_file_of_this_machine_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(signature, "SIGNERS", tmp_path / "allowed_signers")
    assert signers_here(None) is None
    (tmp_path / "allowed_signers").write_text("")
    assert signers_here(None) == tmp_path / "allowed_signers"
    (tmp_path / "allowed_signers").unlink()
    (tmp_path / "allowed_signers").mkdir()
    for given in (None, tmp_path / "nothing"):
        with pytest.raises(ArtifactError, match="cannot read the allowed signers"):
            signers_here(given)


def test_only_what_is_signed_is_unpacked(tmp_path: Path) -> None:
    path, made = bundle_for_any(tmp_path / "dock.edgert"), key(tmp_path)
    with pytest.raises(ArtifactError, match="is refused"), unpacked(path, signers=signers(tmp_path, made)):
        pass
    sign_bundle(path, made)
    with unpacked(path, signers=signers(tmp_path, made)) as found:
        assert found.manifest.board == "host"


def test_the_verbs_sign_and_refuse(tmp_path: Path) -> None:
    made, path = key(tmp_path), bundle(tmp_path / "dock.edgert")
    allowed = str(signers(tmp_path, made))
    for verb in (("run", "-q"), ("inspect",), ("build",)):
        done = in_process(verb[0], str(path), *verb[1:], "--signers", allowed, cwd=tmp_path)
        assert done.returncode == 1 and "is refused" in done.stderr and "it is not signed" in done.stderr
    done = in_process("build", str(path), "--sign", str(made), "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signed_by"].startswith("ED25519 key SHA256:")
    done = in_process("inspect", str(path), "--signers", allowed, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["signer"]["identity"] == "alice@example.com"
    assert "signed by alice@example.com, ED25519" in " ".join(done.stderr.split())
    (tmp_path / "p.yaml").write_text("stages:\n  a: {source: api}\n")
    done = in_process("build", "p.yaml", "--sign", "nothing", cwd=tmp_path)
    assert done.returncode == 2 and "file 'nothing' does not exist" in done.stderr
    for words in (("run", "p.yaml"), ("build", "p.yaml")):
        done = in_process(*words, "--signers", allowed, cwd=tmp_path)
        assert done.returncode == 2 and "bundle" in done.stderr
