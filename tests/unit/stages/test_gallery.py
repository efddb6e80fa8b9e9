"""Named vectors on the disk."""

import io
import logging
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgert import Gallery
from edgert.config.model_section import EmbedTask
from edgert.errors import ArtifactError, ConfigError
from edgert.runtime.json_form import plain
from edgert.stages import gallery as module
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.errors import Exactly, raises
from tests.helpers.growth import Holds
from tests.helpers.known_boxes import identity

KINDS = pytest.mark.parametrize("name", ["people.npz", "people.json"])


@KINDS
def test_the_most_similar_names_it(tmp_path: Path, name: str) -> None:
    rng, path = np.random.default_rng(0), tmp_path / name
    known = rng.normal(0, 1, (40, 64)).astype(np.float32)
    gallery = Gallery(path)
    for number, vector in enumerate(known):
        gallery.add(f"person {number // 2} é/", vector)
    again = Gallery(path)
    assert again.names == gallery.names and len(again) == 40
    for _ in range(100):
        number = int(rng.integers(40))
        vector = known[number] + rng.normal(0, 0.2, 64).astype(np.float32)
        cosines = [float(vector @ one / np.linalg.norm(vector) / np.linalg.norm(one)) for one in known]
        found, similarity = again.match(vector)
        assert found == f"person {int(np.argmax(cosines)) // 2} é/" and similarity == pytest.approx(
            max(cosines), abs=1e-5
        )
    assert again.remove("person 3 é/") == 2 and again.remove("nobody") == 0
    assert len(Gallery(path)) == 38 and [one.name for one in tmp_path.iterdir()] == [name]


@KINDS
def test_a_decoder_names_what_is_like_enough(tmp_path: Path, name: str) -> None:
    Gallery(tmp_path / name).add("Anna", [2, 0, 0])
    decoder = decoder_for(EmbedTask(embed="l2", match=tmp_path / name, threshold=0.9), ())
    decoder.check([(3, 1, 1)], (32, 32))
    like = decoder([np.array([5, 1, 0], np.float32)], identity((32, 32)))
    other = decoder([np.array([1, 1, 0], np.float32)], identity((32, 32)))
    assert (like.name, other.name) == ("Anna", "") and other.similarity == pytest.approx(0.7071, abs=1e-4)
    assert plain(like)["name"] == "Anna" and plain(other)["name"] is None and plain(other)["similarity"] == 0.7071
    assert decoder([np.zeros(3, np.float32)], identity((32, 32))).name == ""


def test_what_is_added_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    path = tmp_path / "people.npz"
    writer = Gallery(path)
    writer.add("Anna", [1, 0])
    reader = Gallery(path)
    writer.add("Ben", [0, 1])
    assert reader.match(np.array([0, 3], np.float32)) == ("Ben", 1.0)
    good = path.read_bytes()
    path.write_bytes(good[:40])
    with caplog.at_level(logging.WARNING):
        assert [reader.match(np.array([0, 3], np.float32))[0] for _ in range(3)] == ["Ben"] * 3
    assert len(caplog.records) == 1 and "people.npz" in caplog.text
    with pytest.raises(ConfigError, match="cannot read the gallery"):
        reader.add("Carl", [1, 1])
    path.write_bytes(good)
    reader.add("Carl", [1, 1])
    assert Gallery(path).names == ("Anna", "Ben", "Carl")


def test_many_add_and_match_at_once(tmp_path: Path) -> None:
    gallery = Gallery(tmp_path / "people.npz")
    gallery.add("0", [1, 0])

    def work(number: int) -> None:
        for _ in range(5):
            gallery.add(str(number), [number, 1])
            assert gallery.match(np.array([1, 0], np.float32))[0] == "0"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(Gallery(tmp_path / "people.npz")) == 21


def test_a_gallery_that_nothing_can_match_is_refused_at_the_start(tmp_path: Path) -> None:
    decoder = decoder_for(EmbedTask(embed="l2", match=tmp_path / "people.npz"), ())
    with raises(ConfigError, r"people.npz is empty", why=Exactly("it does not exist"), fix="edgert gallery "):
        decoder.check([(256,)], (32, 32))
    gallery = Gallery(tmp_path / "people.npz")
    gallery.add("a", np.ones(512))
    with raises(ConfigError, "is of another model", why=("512", "256")):
        decoder.check([(256,)], (32, 32))
    decoder.check([(512,)], (32, 32))
    gallery.remove("a")
    with pytest.raises(ConfigError, match="is empty"):
        decoder.check([(512,)], (32, 32))


def test_what_cannot_be_added_changes_nothing(tmp_path: Path) -> None:
    gallery = Gallery(tmp_path / "a.json")
    gallery.add("a", [1, 2])
    before = gallery.path.read_bytes()
    for name, vector in (("", [1, 2]), ("b", [1, 2, 3]), ("b", [[1, 2]]), ("b", [0, 0]), ("b", [np.inf, 1])):
        with pytest.raises(ConfigError):
            gallery.add(name, vector)
    assert gallery.path.read_bytes() == before and gallery.names == ("a",)
    with pytest.raises(ConfigError, match=r"\.npz or \.json"):
        Gallery(tmp_path / "a.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError):
        Gallery(tmp_path / "file" / "a.json").add("a", [1])


def npz(path: Path, **members: bytes) -> Path:
    """An archive of members, whose digests are right, whatever they are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray, shape: str = "", kind: str = "") -> bytes:
    """As NumPy writes it; with another shape or type in its header, which says so in as many characters."""
    memory = io.BytesIO()
    np.save(memory, array)
    content = memory.getvalue()
    begin = content.index(b"{")
    head = content[begin : content.index(b"\n")].decode()
    header = head.replace(str(array.shape), shape or str(array.shape)).replace(array.dtype.str, kind or array.dtype.str)
    return content[:begin] + header.rstrip().ljust(len(head))[: len(head)].encode() + content[begin + len(head) :]


NAMES, VECTORS = npy(np.array(["Anna", "Ben"])), npy(np.eye(2, dtype=np.float32))


EYE = np.eye(2, dtype=np.float32)
GOOD = {"names": NAMES, "vectors": VECTORS}
MEMBERS: dict[str, dict[str, bytes]] = {
    "other arrays": {"labels": NAMES},
    "pickled": {**GOOD, "names": npy(np.array(["a", "b"], object))},
    "too few names": {**GOOD, "names": npy(np.array(["a"]))},
    "flat": {**GOOD, "vectors": npy(np.ones(2))},
    "no numbers": {**GOOD, "vectors": npy(EYE * np.nan)},
    "endless shape": {**GOOD, "vectors": npy(EYE, "(2, 9999999999999)")},
    "negative shape": {**GOOD, "vectors": npy(EYE, "(-1, 2)")},
    "objects": {**GOOD, "vectors": npy(EYE, kind="|O8")},
    "deep header": {**GOOD, "vectors": b"\x93NUMPY\1\0" + (5000).to_bytes(2, "little") + b"(" * 4999 + b"\n"},
    "half characters": {**GOOD, "names": npy(np.array(["\ud800", "x"]))},
    "no characters": {**GOOD, "names": npy(np.array([1 << 30, 7], "<u4"), kind="<U1")},
    "bomb": {**GOOD, "vectors": VECTORS[:128] + bytes(1 << 28)},
    "many members": {str(number): b"" for number in range(3000)},
}
AT = 30 + len("names.npy")  # of the first member's bytes
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "cut": lambda good: good[:100],
    "plain array": lambda good: VECTORS,
    "compressed bytes": lambda good: good[:AT] + bytes([good[AT] ^ 255]) * 4 + good[AT + 4 :],
    "method": lambda good: good.replace(b"\0\0\x08\0", b"\0\0\x63\0"),
    "encrypted": lambda good: good.replace(b"\x14\0\0\0\x08\0", b"\x14\0\1\0\x08\0"),
}


def hostile(path: Path, kind: str) -> Path:
    """A file that is no gallery, of each kind once."""
    npz(path, **MEMBERS.get(kind, GOOD))
    path.write_bytes(CHANGES.get(kind, bytes)(path.read_bytes()))
    return path


@pytest.mark.parametrize("kind", [*MEMBERS, *CHANGES])
def test_what_is_no_gallery_is_refused_by_name_and_changes_no_running_one(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    before = Holds.now().rss_bytes
    with raises(ConfigError, r"cannot read the gallery |a gallery has no direction", says="bad.npz") as caught:
        Gallery(hostile(tmp_path / "bad.npz", kind))
    assert caught.value.fix and caught.value.why and Holds.now().rss_bytes - before < 400 * 2**20
    running = Gallery(tmp_path / "good.npz")
    running.add("Anna", [1, 0])
    hostile(tmp_path / "good.npz", kind)
    assert running.match(np.array([2, 0], np.float32))[0] == "Anna"
    assert "the vectors that were read before stay" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": [[1' + "0" * 400 + "]]}",
        '{"a": [[1e999]]}',
        '{"a": [[NaN]]}',
        '{"\\ud800": [[1]]}',
        '{"a": [[' + "9" * 5000 + "]]}",
        "[]",
        '{"a": 1}',
        '{"a": [[1], [1, 2]]}',
        '{"a": [["x"]]}',
        '{"a": [[0, 0]]}',
        '{"a": [[1',
        "\x00",
    ],
    ids=range(13),
)
def test_json_that_is_no_gallery_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with raises(ConfigError, fix=True, says="bad.json"):
        Gallery(tmp_path / "bad.json")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe.npz", "folder.json"):
        with pytest.raises(ConfigError, match="it is not a file"):
            Gallery(tmp_path / name)


def test_a_gallery_does_not_outgrow_what_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = Gallery(tmp_path / "people.json")
    gallery.add("Anna", [1, 0])
    monkeypatch.setitem(module._BYTES, ".json", 30)
    with pytest.raises(ConfigError, match="would be too large"):
        for _ in range(9):
            gallery.add("Anna", [1, 0])
    assert Gallery(tmp_path / "people.json").names == ("Anna",)


def test_every_way_that_numpy_writes_is_read(tmp_path: Path) -> None:
    vectors = np.asfortranarray(np.arange(1, 7, dtype=">f8").reshape(2, 3))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "people.npz", names=np.array(["Änna", "南"]), vectors=vectors)
        assert Gallery(tmp_path / "people.npz").match(np.array([4, 5, 6], np.float32)) == ("南", pytest.approx(1.0))
