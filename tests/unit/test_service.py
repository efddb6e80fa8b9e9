"""What ships for Prometheus and systemd, checked by their own tools."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from edgert.control import client
from tests.helpers.command import ROOT

UNIT = ROOT / "configs" / "systemd" / "edgert@.service"
RULES = ROOT / "configs" / "prometheus" / "alerts.yaml"
EXPOSURE = 25  # tenths


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it is part of {package}")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool = tool("promtool", "Prometheus")
    run(promtool, "check", "rules", str(RULES))
    run(promtool, "test", "rules", str(RULES.with_name("alerts.test.yaml")))


def test_every_alert_has_a_test_and_a_line_in_the_docs() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for rule in group["rules"]}
    tested = set(re.findall(r"alertname: (\w+)", RULES.with_name("alerts.test.yaml").read_text()))
    documented = set(re.findall(r"^\| `(Edgert\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    assert names == tested == documented and len(names) == len(group["rules"])


def test_alerts_ask_for_metrics_that_there_are() -> None:
    known = set(re.findall(r"`(edgert_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert set(re.findall(r"\bedgert_\w+", RULES.read_text())) <= known | {f"{name}_bucket" for name in known}


def test_a_service_has_its_socket_where_ctl_and_top_look() -> None:
    text = UNIT.read_text()
    assert "ProtectSystem=strict" in text  # so nothing can be made in /tmp
    assert f"RuntimeDirectory={client.SERVICES.name}/%i\n" in text and client.SERVICES.parent == Path("/run")
    assert f"Environment=XDG_RUNTIME_DIR=%t/{client.SERVICES.name}/%i\n" in text


def test_what_runs_for_months_has_one_heap() -> None:
    """With one for each thread, 10,000 changes of a run left 48 MB in pieces (tests/integration/test_control.py)."""
    for file in (UNIT, *(ROOT / "docker").glob("*.Dockerfile")):
        assert "MALLOC_ARENA_MAX=1" in file.read_text(), file


def test_systemd_finds_nothing_wrong_with_the_unit_and_little_exposed(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    text = UNIT.read_text()
    assert text.count("/opt/edgert/bin/edgert") == 1
    unit = tmp_path / "edgert@dock.service"
    unit.write_text(text.replace("/opt/edgert/bin/edgert", sys.executable))  # a program that is there
    assert run(analyze, "verify", str(unit)) == ""
    run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(unit))


@pytest.mark.parametrize(
    "key",
    [
        *("DeviceAllow", "DevicePolicy", "PrivateDevices", "ProtectClock"),
        *("RootImage", "MountImages", "ExtensionImages", "LoadCredentialEncrypted", "SetCredentialEncrypted"),
    ],
)
def test_the_unit_leaves_devices_alone(key: str) -> None:
    """systemd.exec(5): each of these implies ``DeviceAllow=`` or ``DevicePolicy=``, or adds to it. Before systemd 253 a
    single device that is allowed closes all others: https://github.com/systemd/systemd/pull/25075."""
    assert not re.search(rf"^\s*{key}\s*=", UNIT.read_text(), re.MULTILINE)


def test_the_unit_s_user_has_a_home_that_it_may_write_to() -> None:
    """CUDA and GStreamer keep caches below it; ``useradd --system`` makes none."""
    keys = dict(re.findall(r"^(CacheDirectory|User|ProtectSystem)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert keys == {"User": "edgert", "CacheDirectory": "edgert", "ProtectSystem": "strict"}
    (environment,) = re.findall(r"^Environment=(.*\bHOME=.*)$", UNIT.read_text(), re.MULTILINE)
    assert dict(pair.split("=") for pair in environment.split()) == {"EDGERT_CACHE": "%C/edgert", "HOME": "%C/edgert"}


def test_the_unit_and_the_docs_install_it_by_the_same_commands() -> None:
    """In an order that works: what the unit starts is made first, then its user, the unit, and the pipeline."""
    head = UNIT.read_text().partition("[Unit]")[0]
    typed = re.findall(r"^#   (\S.*?)(?:  +#.*)?$", head, re.MULTILINE)
    assert [re.search(r"setup-jetson|useradd|install|enable", one)[0] for one in typed] == [  # type: ignore[index]
        *("setup-jetson", "useradd", "install", "install", "enable")
    ]
    page = (ROOT / "docs" / "service.md").read_text()
    assert [one for one in re.findall(r"^(\S.*?)(?:  +#.*)?$", page, re.MULTILINE) if one in typed] == typed
    (script,) = re.findall(r"^SYSTEM=(\S+)", (ROOT / "scripts" / "setup-jetson").read_text(), re.MULTILINE)
    assert f"ExecStart={script}/bin/edgert run " in UNIT.read_text()


def test_the_docs_have_the_unit_s_folders() -> None:
    text, page = UNIT.read_text(), (ROOT / "docs" / "service.md").read_text()
    for line in (
        "Type=notify",
        "WatchdogSec=60",
        "Restart=always",
        "StateDirectory=edgert/%i",
        "CacheDirectory=edgert",
    ):
        assert line in text
    for place in ("/etc/edgert/", "/var/lib/edgert/", "edgert@.service"):
        assert place in page
