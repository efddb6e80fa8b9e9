"""Shared profiles: what is refused, by name, and what is never in one."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgert.bundle import shared_profile
from edgert.bundle.shared_profile import SharedProfile, is_shared_profile, read_shared_profile, shipped_profiles
from edgert.errors import ArtifactError, ConfigError
from edgert.quantiles import AT

STEADY = [1.0] * len(AT)
GOOD: dict[str, Any] = {
    "board": "orin-nx-16gb",
    "mode": "15W",
    "clocks": {"gpu_mhz": 612.0, "cpu_mhz": 1651.2},
    "software": {"edgert": "0.1.0", "jetpack": "6.2", "tensorrt": "10.3.0"},
    "models": [
        {
            "digest": "a" * 64,
            "structure": "b" * 64,
            "precision": "fp16",
            "frames": 1,
            "nodes": 3,
            "macs": 4_000_000_000,
            "engines": [
                {
                    "placement": {"dla0": [0]},
                    "runs": 30,
                    "median_ms": 8.0,
                    "quantiles": STEADY,
                    "layers": [
                        {"nodes": [0, 1], "median_ms": 5.0, "reformat": False},
                        {"nodes": [2], "median_ms": 2.5},
                    ],
                }
            ],
        }
    ],
    "stages": [{"kind": "track", "megapixels": 2.07, "ms": 0.4, "results": 900}],
}
Change = Callable[[dict[str, Any]], object]


def content_of(change: Change = lambda content: None) -> dict[str, Any]:
    content = json.loads(json.dumps(GOOD))
    change(content)
    return {"format": shared_profile.FORMAT, "schema": 1, **content}


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps({**content, "digest": shared_profile._digest(content)}))
    return path


def engine(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["models"][0]["engines"][0]
    return found


def test_it_is_written_and_read_again(tmp_path: Path) -> None:
    found = read_shared_profile(write(tmp_path / "p.json", content_of()))
    (tmp_path / "again.json").write_text(json.dumps(found.to_json()))
    assert read_shared_profile(tmp_path / "again.json") == found and is_shared_profile(tmp_path / "again.json")
    assert found.models[0].engines[0].layers[1].median_ms == 2.5


@pytest.mark.parametrize(
    ("change", "what", "why"),
    [
        (lambda c: engine(c).update(median_ms=0.0), "a run takes 0 ms", "a time must be above 0"),
        (lambda c: engine(c).update(median_ms=-1.0), "a run takes -1 ms", "a time must be above 0"),
        (lambda c: engine(c)["layers"][0].update(median_ms=-0.1), "a layer takes -0.1 ms", "a time cannot be negative"),
        (
            lambda c: engine(c)["layers"][0].update(median_ms=50.0),
            "its layers take 52.5 ms in a run of 8 ms",
            "contradicts",
        ),
        (
            lambda c: engine(c).update(layers=[{"nodes": [0], "median_ms": 0.1}]),
            "its layers take 0.1 ms",
            "contradicts",
        ),
        (
            lambda c: engine(c).update(median_ms=0.5, layers=[]),
            "above the peak of orin-nx-16gb in 15W",
            "multiply-adds",
        ),
        (lambda c: (c["clocks"].update(gpu_mhz=61.2), engine(c).update(placement={})), "above the peak", "0.501"),
        (lambda c: engine(c).update(quantiles=STEADY[:-1]), "its quantiles are impossible", "25 quantiles"),
        (lambda c: engine(c).update(quantiles=[2.0] * len(AT)), "its quantiles are impossible", "the median"),
        (lambda c: engine(c).update(quantiles=[*STEADY[:-1], 0.5]), "its quantiles are impossible", "no quantiles"),
        (lambda c: engine(c).update(placement={"dla2": [0]}), "nodes on 'dla2'", "dla0, dla1"),
        (lambda c: engine(c).update(placement={"dla0": [3]}), "node 3 of a model with 3 nodes", "from 0"),
        (lambda c: c.update(board="orin-nx-17gb"), "board 'orin-nx-17gb', which edgert does not know", "did you mean"),
        (lambda c: c.update(mode="16W"), "orin-nx-16gb has no power mode '16W'", "modes: MAXN"),
        (lambda c: c["clocks"].update(gpu_mhz=1300.0), "1300 is too high for orin-nx-16gb", "at most 918"),
        (lambda c: c["clocks"].update(gpu_mhz=918.0), "gpu_mhz 918 is too high for mode 15W", "at most 612"),
        (lambda c: c["clocks"].update(emc_mhz=0.0), "mhz is 0 MHz", "a clock must be above 0"),
        (lambda c: c["clocks"].update(usb_mhz=1.0), "there is no clock 'usb_mhz'", "gpu_mhz"),
        (lambda c: c["stages"][0].update(ms=0.0), "a stage of kind 'track' takes 0 ms", "a time must be above 0"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(tmp_path: Path, change: Change, what: str, why: str) -> None:
    path = write(tmp_path / "p.json", content_of(change))
    with pytest.raises(ArtifactError) as caught:
        read_shared_profile(path)
    assert what in caught.value.what and why in caught.value.why
    assert caught.value.where.startswith(str(path)) and "--share" in caught.value.fix


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda c: c.update(host="mine"), "host"),
        (lambda c: c["models"][0].update(name="secret"), "models.0.name"),
        (lambda c: c["software"].update(tensorrt="/home/me/lib"), "software.tensorrt"),
        (lambda c: c["models"][0].update(digest="me"), "models.0.digest"),
        (lambda c: c["models"][0].update(precision="fp8"), "models.0.precision"),
        (lambda c: c["models"][0].update(engines=[]), "models.0.engines"),
        (lambda c: c["models"][0].update(frames=0), "models.0.frames"),
        (lambda c: engine(c).update(runs=0), "models.0.engines.0.runs"),
        (lambda c: engine(c).update(median_ms="fast"), "models.0.engines.0.median_ms"),
        (lambda c: engine(c).update(median_ms=math.nan), "models.0.engines.0.median_ms"),
        (lambda c: engine(c).update(median_ms=math.inf), "models.0.engines.0.median_ms"),
        (lambda c: c["stages"][0].update(kind="my stage"), "stages.0.kind"),
        (lambda c: c.pop("models"), "models"),
    ],
)
def test_what_does_not_belong_into_one_is_refused(tmp_path: Path, change: Change, key: str) -> None:
    with pytest.raises(ArtifactError, match=rf"wrong value in a shared profile at {key}"):
        read_shared_profile(write(tmp_path / "p.json", content_of(change)))


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["clocks"].update(gpu_mhz=5000.0, cpu_mhz=-1.0)
        engine(content).update(median_ms=0.0)

    with pytest.raises(ArtifactError) as caught:
        read_shared_profile(write(tmp_path / "p.json", content_of(change)))
    assert len(caught.value.others) == 2


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", content_of())
    path.write_text(path.read_text().replace("8.0", "7.0"))
    with pytest.raises(ArtifactError, match="changed since it was written"):
        read_shared_profile(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "something else"}', '{"schema": 1}', "[" * 100_000])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    assert not is_shared_profile(path)
    with pytest.raises(ArtifactError, match=r"cannot read profile|cannot read this as"):
        read_shared_profile(path)
    with pytest.raises(ArtifactError, match="cannot read profile"):
        read_shared_profile(tmp_path / "absent.json")


def test_a_file_without_end_is_no_profile() -> None:
    assert not is_shared_profile(Path("/dev/zero"))
    with pytest.raises(ConfigError, match="/dev/zero is too long"):
        read_shared_profile(Path("/dev/zero"))


def test_a_file_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot read this as a shared profile"):
        read_shared_profile(write(tmp_path / "p.json", {**content_of(), "schema": 2}))


def test_estimated_clocks_forbid_nothing(tmp_path: Path) -> None:
    """The clocks of a T4000 are not published: a measured one is not above its limits."""

    def change(content: dict[str, Any]) -> None:
        content.update(board="thor-t4000", mode="unknown", clocks={"gpu_mhz": 1600.0})
        engine(content).update(placement={}, median_ms=0.02, layers=[])

    assert read_shared_profile(write(tmp_path / "p.json", content_of(change))).board == "thor-t4000"


def test_every_profile_that_comes_with_edgert_can_be() -> None:
    assert all(isinstance(one, SharedProfile) for one in shipped_profiles())
