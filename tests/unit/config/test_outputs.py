"""The keys of sinks that write files, and outputs that would destroy each other."""

from pathlib import Path

import pytest

from edgert.config.pipeline_file import load_pipeline
from edgert.errors import ConfigError
from edgert.stages.context import Context
from edgert.stages.sink.retention import Rules

HEAD = "schema: 1\nstages:\n  north: {source: north.mp4}\n  south: {source: south.mp4}\n"


def load(folder: Path, *sinks: str) -> object:
    (folder / "north.mp4").touch()
    text = "".join(f"  s{number}: {{{sink}}}\n" for number, sink in enumerate(sinks))
    (folder / "p.yaml").write_text(HEAD + text)
    return load_pipeline(folder / "p.yaml").config


def rules(folder: Path, keys: str, starts_over: bool = False) -> Rules:
    config = load(folder, f"sink: jsonl, from: north, path: out.jsonl, {keys}")
    return config.stages["s0"].rules(Context(starts_over=starts_over))  # type: ignore[attr-defined, no-any-return]


def test_the_keys_become_rules(tmp_path: Path) -> None:
    written = "rotate: {size: 500MB, every: 1h}, keep: {age: 7d, size: 20GB, free: 2GiB}"
    assert rules(tmp_path, written) == Rules(True, True, 500_000_000, 3600.0, 604_800.0, 20_000_000_000, 1 << 31)
    assert rules(tmp_path, "existing: auto") == Rules(keeps=True, endless=True)
    assert rules(tmp_path, "existing: auto", starts_over=True) == Rules()
    assert rules(tmp_path, "existing: keep", starts_over=True) == Rules(keeps=True)
    assert rules(tmp_path, "existing: replace") == Rules(endless=True)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("rotate: {}", "expected size: or every:"),
        ("rotate: {size: 10B}", "at least 64KiB"),
        ("rotate: {size: 0B}", "more than 0 bytes"),
        ("rotate: {every: 0s}", "1 or more"),
        ("rotate: {every: 1y}", "unknown unit"),
        ("rotate: {each: 1h}", "unknown key 'each'"),
        ("rotate: 1h", "expected keys"),
        ("keep: {}, rotate: {every: 1h}", "expected age:, size: or free:"),
        ("keep: {age: 7d}", "only finished files are removed"),
        ("keep: {size: 100MB}, rotate: {size: 100MB}", "leaves no room"),
        ("keep: {age: -1d}, rotate: {every: 1h}", "expected a number"),
        ("keep: {free: 10 %}, rotate: {every: 1h}", "expected a number"),
        ("existing: append", "expected auto, keep or replace"),
    ],
)
def test_rules_that_cannot_be(tmp_path: Path, keys: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules(tmp_path, keys)
    assert says in str(caught.value) and "p.yaml:5" in caught.value.where


@pytest.mark.parametrize(
    ("sinks", "names"),
    [
        (("sink: jsonl, from: north, path: a.x", "sink: jsonl, from: south, path: a.x"), "'s0' writes, too"),
        (("sink: video, from: north, path: o/a.mp4", "sink: jsonl, from: north, path: o/../o/a.mp4"), "'s0' writes"),
        (("sink: jsonl, from: north, path: link/a.x", "sink: jsonl, from: north, path: real/a.x"), "'s0' writes, too"),
        (("sink: jsonl, from: [north, south], path: '{stream}.x'", "sink: jsonl, from: south, path: south.x"), "'s0'"),
        (("sink: images, from: north, path: o", "sink: images, from: [north, south], path: o"), "'s0' writes, too"),
        (("sink: video, from: north, path: north.mp4",), "the pipeline reads"),
        (("sink: video, from: north, path: '{stream}.mp4'",), "the pipeline reads"),
        (("sink: jsonl, from: north, path: p.yaml",), "the pipeline reads"),
    ],
)
def test_two_that_need_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...], names: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match=names) as caught:
        load(tmp_path, *sinks)
    assert "path" in caught.value.where and caught.value.fix


def test_files_that_only_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    load(
        tmp_path,
        "sink: jsonl, from: north, path: 'o/{stream}.x'",
        "sink: jsonl, from: south, path: 'o/{stream}.x'",
        "sink: images, from: north, path: o",
        "sink: images, from: south, path: o",
        "sink: jsonl, from: north, path: /dev/null",
        "sink: jsonl, from: south, path: /dev/null",
    )


def test_a_loop_of_links_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").symlink_to("out.jsonl")
    load(tmp_path, f"sink: jsonl, from: north, path: {tmp_path}/out.jsonl")
