"""Bundles: whole or refused, the same bytes for the same content."""

import hashlib
import io
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from edgert.bundle.bundle import is_bundle, open_bundle, save_bundle
from edgert.bundle.manifest import NAME
from edgert.errors import ArtifactError
from tests.helpers.bundles import MEMBERS, bundle, manifest_of, packed


def refused(path: Path, content: bytes) -> ArtifactError:
    """The error that opening such a file ends with."""
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as caught:
        open_bundle(path)
    assert caught.value.what and str(caught.value)
    return caught.value


def test_what_is_packed_is_found(tmp_path: Path) -> None:
    path = bundle(tmp_path / "deep" / "dock.edgert")
    assert is_bundle(path)
    with open_bundle(path) as opened:
        assert opened.manifest == manifest_of()
        assert {member: opened.read(member) for member in MEMBERS} == MEMBERS
        opened.extract(tmp_path / "out", ["models/parts/model.onnx"])
        with pytest.raises(ArtifactError, match="no member 'none'"):
            opened.read("none")
    assert (tmp_path / "out/models/parts/model.onnx").read_bytes() == MEMBERS["models/parts/model.onnx"]
    assert not (tmp_path / "out/pipeline.yaml").exists()
    assert [one.name for one in path.parent.iterdir()] == ["dock.edgert"]


def test_equal_content_gives_equal_bytes_in_any_order(tmp_path: Path) -> None:
    first = bundle(tmp_path / "first.edgert").read_bytes()
    backwards = dict(reversed(list(MEMBERS.items())))
    save_bundle(tmp_path / "second.edgert", manifest_of(backwards), backwards)
    assert (tmp_path / "second.edgert").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "first.edgert") as archive:
        infos = archive.infolist()
        assert [info.filename for info in infos] == [NAME, *sorted(MEMBERS)]
        assert {(info.date_time, info.compress_type) for info in infos} == {((1980, 1, 1, 0, 0, 0), 0)}
        assert archive.testzip() is None


def test_the_same_bundle_is_left_alone_and_a_damaged_one_written_anew(tmp_path: Path) -> None:
    path = bundle(tmp_path / "dock.edgert")
    before = path.stat().st_mtime_ns
    assert not save_bundle(path, manifest_of(), MEMBERS)
    assert path.stat().st_mtime_ns == before
    path.write_bytes(path.read_bytes()[:-1])
    assert save_bundle(path, manifest_of(), MEMBERS)
    with open_bundle(path) as opened:
        assert opened.manifest == manifest_of()


def test_every_byte_of_headers_and_manifest_is_guarded(tmp_path: Path) -> None:
    content = bundle(tmp_path / "dock.edgert").read_bytes()
    model = content.index(MEMBERS["models/parts/model.onnx"])
    path = tmp_path / "flipped.edgert"
    for place in range(len(content)):
        if model + 8 < place < model + 500:  # data, which the next test looks into at random
            continue
        refused(path, content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_any_flipped_byte_and_any_beginning_is_refused(tmp_path: Path, place: int, bits: int) -> None:
    content = bytearray(bundle(tmp_path / "dock.edgert").read_bytes())
    refused(tmp_path / "cut.edgert", bytes(content[: place % len(content)]))
    content[place % len(content)] ^= bits
    refused(tmp_path / "flipped.edgert", bytes(content))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    content = bundle(tmp_path / "dock.edgert").read_bytes()
    path = tmp_path / "wrong.edgert"
    assert all("no bundle" in refused(path, other).what for other in (b"", b"schema: 1\n"))
    assert "cut short" in refused(path, content[:700]).why
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("photo.txt", "hello")
    assert "no bundle of edgert's" in refused(path, foreign.getvalue()).what
    later = refused(path, content.replace(b"edgert-bundle 1", b"edgert-bundle 7"))
    assert "format 7" in later.what and "update edgert" in later.fix
    with pytest.raises(ArtifactError, match="there is no bundle"):
        open_bundle(tmp_path / "none.edgert")


@pytest.mark.parametrize("schema", [1, 2, 4])
def test_a_bundle_of_another_schema_is_refused_by_name(tmp_path: Path, schema: int) -> None:
    other = {**json.loads(manifest_of().to_bytes()), "schema": schema, "edgert": "9.1"}
    error = refused(tmp_path / "other.edgert", packed({**MEMBERS, NAME: json.dumps(other).encode()}))
    assert f"schema {schema}" in error.what and "reads schema 3" in error.why
    assert "build the bundle again" in error.fix and "edgert '9.1'" in error.why and "update edgert" in error.fix


@pytest.mark.parametrize(("field", "value"), [("tensorrt", "10.3\nx"), ("board", "a\x1b[2J"), ("mode", "15W\r")])
def test_control_characters_in_a_manifest_are_refused(tmp_path: Path, field: str, value: str) -> None:
    error = refused(tmp_path / "bad.edgert", packed({**MEMBERS, NAME: manifest_of(**{field: value}).to_bytes()}))
    assert "is damaged" in error.what and not set("\n\r\x1b") & set(error.why)


@pytest.mark.parametrize(
    "path",
    ["/etc/x", "../x", "a/../x", "a//b", "", ".hidden", "a/", "C:/x", "a\\b", "x.", "nul.txt", "a b", "ä", "x\0"],
)
def test_paths_that_lead_elsewhere_cannot_be_packed_or_opened(tmp_path: Path, path: str) -> None:
    with pytest.raises(ArtifactError, match="member"):
        packed({path: b"x"})
    refused(tmp_path / "bad.edgert", guarded({path: b"x"}))


@pytest.mark.parametrize("paths", [("a", "A"), ("a/b", "A/B"), ("a", "a/b"), ("x/y/z", "x")])
def test_paths_that_meet_on_disk_are_refused(tmp_path: Path, paths: tuple[str, str]) -> None:
    with pytest.raises(ArtifactError, match="member"):
        packed(dict.fromkeys(paths, b"x"))
    refused(tmp_path / "bad.edgert", guarded(dict.fromkeys(paths, b"x")))


def guarded(members: dict[str, bytes], **settings: object) -> bytes:
    """An archive that somebody made to look like ours: a true digest around what we would not write."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path, content in members.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = int(settings.get("mode", stat.S_IFREG | 0o644)) << 16  # type: ignore[call-overload]
            archive.writestr(info, content, settings.get("compress", 0))  # type: ignore[arg-type]
            if settings.get("twice"):
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr(path, content)
        archive.comment = b"edgert-bundle 1 sha256:" + b"0" * 64
    body = file.getvalue()[:-64]
    label = len(b"edgert-bundle 1 sha256:")
    return body + hashlib.sha256(body[:-label]).hexdigest().encode()


def test_links_bombs_and_doubles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "made.edgert"
    whole = {NAME: manifest_of().to_bytes(), **MEMBERS}
    path.write_bytes(guarded(whole))
    open_bundle(path).close()  # only what is changed below is wrong with it
    assert "no plain file" in refused(path, guarded(whole, mode=stat.S_IFLNK | 0o777)).why
    bomb = {**whole, "zeros": bytes(10**6)}
    assert "compressed" in refused(path, guarded(bomb, compress=zipfile.ZIP_DEFLATED)).why
    assert "another member" in refused(path, guarded(whole, twice=True)).why
    assert "another member" in refused(path, guarded({"a": b"x"}, twice=True)).why  # Python has one such string only


def test_members_and_manifest_belong_together(tmp_path: Path) -> None:
    path = tmp_path / "made.edgert"
    own = manifest_of().to_bytes()
    assert "not listed" in refused(path, packed({**MEMBERS, NAME: own, "extra": b""})).why
    less = {member: content for member, content in MEMBERS.items() if member != "pipeline.yaml"}
    assert "missing" in refused(path, packed({**less, NAME: own})).why
    longer = {**MEMBERS, "pipeline.yaml": MEMBERS["pipeline.yaml"] + b" "}
    assert "damaged" in refused(path, packed({**longer, NAME: own})).what
    other = {**MEMBERS, "pipeline.yaml": MEMBERS["pipeline.yaml"].swapcase()}
    assert "damaged" in refused(path, packed({**other, NAME: own})).what
    assert "manifest.json" in refused(path, packed(dict(MEMBERS))).why
    edited = own.replace(b'"board": "orin-nx-16gb"', b'"board": "orin-nx-08gb"')
    assert "digest" in refused(path, packed({**MEMBERS, NAME: edited})).why
    unlisted = manifest_of(pipeline="other.yaml").to_bytes()
    assert "lists no such member" in refused(path, packed({**MEMBERS, NAME: unlisted})).why
    for nonsense in (b"{", b"[]", b"\xff", b"null", b'{"format": "edgert ranges"}', b"[" * 100_000):
        refused(path, packed({**MEMBERS, NAME: nonsense}))


def test_what_is_in_the_way_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("keep me")
    for name in ("mine", "mine/letter.txt/dock.edgert"):
        with pytest.raises(ArtifactError, match="cannot write"):
            save_bundle(tmp_path / name, manifest_of(), MEMBERS)
    assert (tmp_path / "mine/letter.txt").read_text() == "keep me"


def test_half_written_files_of_killed_builds_are_swept(tmp_path: Path) -> None:
    old, new = (tmp_path / f".dock.edgert-{digit * 32}" for digit in "ab")
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (0, 0))
    bundle(tmp_path / "dock.edgert")
    bundle(tmp_path / "dock.edgert")  # the same is left alone, and yet looked around
    assert not old.exists() and new.exists()


def test_what_is_no_bundle_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("schema: 1")
    assert not any(is_bundle(tmp_path / name) for name in ("pipeline.yaml", "none", "."))
    bundle(tmp_path / "renamed")
    assert is_bundle(tmp_path / "renamed")
