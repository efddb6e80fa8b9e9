"""Bundles as files for Ansible, systemd, Docker Compose and Kubernetes, each checked by its own tool."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from edgert.bundle.bundle import save_bundle
from edgert.errors import ArtifactError, ConfigError
from edgert.exporter.fleet import FLEET_FORMATS, FleetFormat, drop_in, export_fleet, read_releases, render
from tests.helpers.bundles import MEMBERS, manifest_of
from tests.helpers.command import ROOT, in_process
from tests.unit.stages.sink.test_metrics import every_name

PAGE = 'page: {sink: http, from: cam, host: 0.0.0.0, port: "${PORT:-8081}", token: "${PAGE_TOKEN}"}'
BOARDS = ("host", "orin-nx-16gb", "thor-t5000")


def bundle(folder: Path, board: str = "host", page: str = PAGE, name: str = "dock", file: str = "") -> Path:
    text = f'name: {name}\nstages:\n  cam: {{source: "rtsp://${{USER}}:${{PASSWORD}}@10.0.0.1/x"}}\n'
    members = {**MEMBERS, "pipeline.yaml": f"{text}  {page}\n".encode()}
    about: dict[str, Any] = {"board": board, "name": name}
    if board == "host":
        about |= {"mode": "", "tensorrt": "", "engines": ["onnxruntime"]}
    path = folder / (file or f"{name}-{board}.edgert")
    save_bundle(path, manifest_of(members, **about), members)
    return path


Export = Callable[..., tuple[Path, dict[str, str]]]


@pytest.fixture
def exported(tmp_path: Path) -> Export:
    def run(format: FleetFormat, *paths: Path) -> tuple[Path, dict[str, str]]:
        output = tmp_path / format
        _, notes = export_fleet(paths or [bundle(tmp_path, board) for board in BOARDS], format, output)
        files = (path for path in output.rglob("*") if path.is_file() and path.suffix != ".edgert")
        return output, {
            **{str(path.relative_to(output)): path.read_text() for path in files},
            "notes": "\n".join(notes),
        }

    return run


def program(name: str, package: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here: {package}")
    return found


def checked(*command: str, **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_role_has_a_release_for_each_kind_of_board(exported: Export, tmp_path: Path) -> None:
    output, files = exported("ansible")
    found = yaml.safe_load(files["roles/edgert/defaults/main.yaml"])
    releases = {one.board: one for one in read_releases([tmp_path / f"dock-{board}.edgert" for board in BOARDS])}
    assert found["edgert_name"] == "dock" and set(found["edgert_releases"]) == set(BOARDS)
    for board, one in found["edgert_releases"].items():
        copied = output / "roles/edgert/files" / one["bundle"]
        assert copied.read_bytes() == releases[board].path.read_bytes() and one["digest"] == releases[board].digest
        assert one["ready"] == "http://127.0.0.1:8081/readyz"
    assert files["roles/edgert/templates/edgert@.service"] == (ROOT / "configs/systemd/edgert@.service").read_text()
    (play,) = yaml.safe_load(files["rollout.yaml"])
    assert "'25%'" in play["serial"] and "[1," in play["serial"] and "25" in play["max_fail_percentage"]
    assert "edgert" in play["roles"]


@pytest.mark.slow
def test_ansible_understands_the_role(exported: Export) -> None:
    ansible = program("ansible-playbook", "pip install -e '.[fleet-test]'")
    output, _ = exported("ansible")
    words = [ansible, "--syntax-check", "-i", "inventory.yaml", "rollout.yaml"]
    checked(*words, cwd=output, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": str(output)})


def test_what_the_user_changed_stays(exported: Export) -> None:
    output, _ = exported("ansible")
    (output / "inventory.yaml").write_text("all: {hosts: {mine: {}}}\n")
    _, files = exported("ansible")
    assert "mine" in files["inventory.yaml"] and "inventory.yaml exists" in files["notes"]


def test_the_unit_and_its_part_for_the_bundle_are_those_of_the_docs(exported: Export) -> None:
    _, files = exported("systemd", bundle(Path(exported("ansible")[0].parent), "host"))
    conf = files["edgert@dock.service.d/bundle.conf"]
    page = (ROOT / "docs" / "service.md").read_text()
    assert conf in page and conf == drop_in("/etc/edgert/dock.edgert")
    assert files["edgert@.service"] == (ROOT / "configs/systemd/edgert@.service").read_text()


def test_systemd_finds_nothing_wrong(exported: Export, tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "apt install systemd")
    _, files = exported("systemd", bundle(tmp_path))
    unit = tmp_path / "edgert@dock.service"
    unit.write_text(files["edgert@.service"].replace("/opt/edgert/bin/edgert", sys.executable))
    folder = tmp_path / "edgert@dock.service.d"
    folder.mkdir()
    text = files["edgert@dock.service.d/bundle.conf"].replace("/opt/edgert/bin/edgert", sys.executable)
    (folder / "bundle.conf").write_text(text)
    checked(analyze, "verify", str(unit))


def test_compose_files_follow_the_compose_specification(exported: Export) -> None:
    package = pytest.importorskip("check_jsonschema", reason="it has the schema: pip install -e '.[test]'")
    schema = Path(package.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    _, files = exported("compose")
    found = [yaml.safe_load(text) for name, text in files.items() if name.endswith(("compose.yaml", "watch.yaml"))]
    assert len(found) == len(BOARDS) + 1
    for one in found:
        jsonschema.validate(one, json.loads(schema.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"edgert": {"imag": "x"}}}, json.loads(schema.read_text()))


def test_prometheus_and_grafana_get_what_they_are_told_to_read(exported: Export) -> None:
    output, files = exported("compose")
    services = yaml.safe_load(files["watch.yaml"])["services"]
    mounts = [one.split(":")[0] for service in services.values() for one in service["volumes"]]
    for path in (one for one in mounts if one.startswith("./") and one != "./token"):
        assert (output / path).is_file(), path
    scrape = yaml.safe_load(files["prometheus.yaml"])
    assert scrape["rule_files"] == ["alerts.yaml"] and files["alerts.yaml"].startswith("# Alerts for Prometheus")
    (job,) = scrape["scrape_configs"]
    assert job["job_name"] == "edgert" and job["authorization"] == {"credentials_file": "/etc/prometheus/token"}
    assert yaml.safe_load(files["targets.yaml"])[0]["targets"] == ["dock1.local:8081"]
    for name in services:
        for port in services[name]["ports"]:
            assert port.startswith("127.0.0.1:"), "nothing is open to the network that was not asked for"
    json.loads(files["grafana/edgert.json"])


def test_promtool_understands_the_configuration(exported: Export, tmp_path: Path) -> None:
    promtool = program("promtool", "it is part of Prometheus")
    output, files = exported("compose")
    text = files["prometheus.yaml"].replace("/etc/prometheus/token", str(output / "token"))
    (output / "token").write_text("secret")
    (output / "prometheus.yaml").write_text(text)
    checked(promtool, "check", "config", str(output / "prometheus.yaml"))


def test_a_page_that_is_closed_is_named(exported: Export, tmp_path: Path) -> None:
    closed = bundle(tmp_path, page="page: {sink: http, from: cam}", file="closed.edgert")
    assert "Prometheus reaches no page" in exported("compose", closed)[1]["notes"]


def test_kubernetes_accepts_the_manifests_strictly(exported: Export) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed: pip install -e '.[kubernetes-test]'")
    check = program("kubernetes-validate", "pip install -e '.[kubernetes-test]'")
    output, files = exported("kubernetes")
    names = [name for name in files if name.endswith(".yaml")]
    assert len(names) == len(BOARDS)
    checked(check, "--strict", *(str(output / name) for name in names))


def manifests(files: Mapping[str, str]) -> dict[str, Any]:
    found = [yaml.safe_load(text) for name, text in files.items() if name.endswith(".yaml")]
    return {one["spec"]["template"]["spec"]["nodeSelector"]["edgert/board"]: one for one in found}


def test_a_daemonset_for_each_kind_of_board(exported: Export) -> None:
    output, files = exported("kubernetes")
    found = manifests(files)
    assert set(found) == set(BOARDS)
    for board, one in found.items():
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert ("runtimeClassName" in pod) == (board != "host")
        assert one["spec"]["minReadySeconds"] == 60 and one["spec"]["updateStrategy"]["rollingUpdate"] == {
            "maxUnavailable": 1
        }
        assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
        assert (
            container["securityContext"]["capabilities"] == {"drop": ["ALL"]} and pod["securityContext"]["runAsNonRoot"]
        )
        dockerfile = files[f"{one['metadata']['name']}.Dockerfile"]
        assert f"-t {container['image']} " in dockerfile and container["args"][1].split("/")[-1] in dockerfile
        assert (output / container["args"][1].split("/")[-1]).is_file()


def test_its_probes_are_those_of_the_docs(exported: Export, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    probes = dict(re.findall(r"^(\w+Probe): (\{.*\})$", page, re.MULTILINE))
    at_8080 = bundle(tmp_path, page="page: {sink: http, from: cam, host: 10.0.0.7}", file="open.edgert")
    _, files = exported("kubernetes", at_8080)
    (container,) = manifests(files)["host"]["spec"]["template"]["spec"]["containers"]
    for name, probe in probes.items():
        assert container[name]["httpGet"].pop("host") == "10.0.0.7"
        assert container[name] == yaml.safe_load(probe)


def test_without_a_page_a_pod_asks_the_pipeline_itself(exported: Export, tmp_path: Path) -> None:
    silent = bundle(tmp_path, page='log: {sink: "null", from: cam}', file="silent.edgert")
    _, files = exported("kubernetes", silent)
    (container,) = manifests(files)["host"]["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["exec"]["command"][-1] == "/opt/edgert/health.py"
    assert "readinessProbe" not in container and "is not known" in files["notes"]
    with pytest.raises(ConfigError, match="a rollout cannot be watched"):
        exported("ansible", silent)


def test_bundles_that_cannot_go_together_are_refused(tmp_path: Path) -> None:
    for paths, why in (
        ([bundle(tmp_path), bundle(tmp_path, file="again.edgert")], "2 bundles are for host"),
        ([bundle(tmp_path), bundle(tmp_path, "orin-nx-16gb", name="gate")], "of several pipelines"),
        ([tmp_path], "is a folder"),
        ([ROOT / "pipelines" / "hello.yaml"], "is no bundle"),
    ):
        with pytest.raises(ConfigError, match=why):
            export_fleet(paths, "systemd", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_from_a_bundle_leads_nowhere_else(tmp_path: Path) -> None:
    found = read_releases([bundle(tmp_path, name='"../../etc/x; rm -rf {{ 1 }}"', file="odd.edgert")])[0]
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found.name) and ".." not in found.file_name
    with pytest.raises(ArtifactError, match="cannot be exported"):
        read_releases([bundle(tmp_path, "../../etc", file="elsewhere.edgert")])


@pytest.mark.parametrize("format", FLEET_FORMATS)
def test_a_host_from_a_bundle_stays_text(format: FleetFormat, exported: Export, tmp_path: Path) -> None:
    host = "10.0.0.7, path: /evil}}\nevil: {x: {y: 1"
    page = f"page: {{sink: http, from: cam, host: {json.dumps(host)}, port: 8081}}"
    _, files = exported(format, bundle(tmp_path, page=page, file="odd.edgert"))
    for name, text in files.items():
        if name.endswith(".yaml"):
            assert [one for one in yaml.safe_load_all(text) if "evil" in (one or ())] == [], name
    if format == "kubernetes":
        (container,) = manifests(files)["host"]["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"]["host"] == host


def test_an_address_has_brackets_on_ipv6_and_stages_are_a_table(tmp_path: Path) -> None:
    page = 'page: {sink: http, from: cam, host: "::1", port: 8081}'
    (found,) = read_releases([bundle(tmp_path, page=page)])
    assert found.ready_url == "http://[::1]:8081/readyz"
    assert read_releases([bundle(tmp_path, page=f"page: {{sink: http, port: '{'8' * 5000}'}}")])[0].page is None
    assert read_releases([bundle(tmp_path, page='page: {sink: http, host: "${HOST}"}')])[0].page is None
    with pytest.raises(ArtifactError, match="cannot be exported") as caught:
        read_releases([bundle(tmp_path, page="page: 5")])
    assert "no table of stages" in caught.value.why


def test_a_board_without_an_image_is_named(tmp_path: Path) -> None:
    for format in ("compose", "kubernetes"):
        with pytest.raises(ConfigError, match="no image for xavier-nx-8gb"):
            export_fleet([bundle(tmp_path, "xavier-nx-8gb")], format, tmp_path / "out")


@pytest.mark.parametrize("format", FLEET_FORMATS)
def test_the_verb_writes_the_folder(format: str, tmp_path: Path) -> None:
    for board in BOARDS:
        bundle(tmp_path, board)
    names = [f"dock-{board}.edgert" for board in BOARDS]
    done = in_process("export", *names, "--format", format, "-o", "out", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / path).is_file() for path in json.loads(done.stdout)["files"])
    done = in_process("export", *names, "--format", format, "-o", "out", "--model", "parts", cwd=tmp_path)
    assert done.returncode == 2 and "--model" in done.stderr


def test_models_are_exported_from_one_source(tmp_path: Path) -> None:
    done = in_process("export", "a.edgert", "b.edgert", "--format", "onnx", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2 and "takes one source" in done.stderr


MADE: dict[str, Any] = json.loads(render("fleet/compose/grafana/edgert.json.j2"))
QUERIES = [target["expr"] for panel in MADE["panels"] for target in panel["targets"]]
(GROUP,) = yaml.safe_load((ROOT / "configs" / "prometheus" / "alerts.yaml").read_text())["groups"]
RULES = [rule["expr"] for rule in GROUP["rules"]]
PROMETHEUS_OWN = {"up"}


@pytest.mark.parametrize("query", [*QUERIES, *RULES])
def test_a_query_is_promql_of_metrics_that_there_are(query: str) -> None:
    promql = pytest.importorskip("promql_parser", reason="pip install -e '.[test]'")
    parsed = promql.parse(query.replace("$__rate_interval", "5m"))
    names = set(re.findall(r"\b(edgert_\w+|up)\b(?=[{\[ )]|$)", query))
    assert parsed.prettify() and names
    assert names - PROMETHEUS_OWN <= every_name()


def test_every_panel_has_its_place() -> None:
    taken = set[tuple[int, int]]()
    for panel in MADE["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in MADE["panels"]}) == len(MADE["panels"]) == 16


def test_grafanas_own_types_have_all_of_it() -> None:
    """Grafana's SDK is made of its schemas. What it does not know would be lost on the way through it."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="pip install -e '.[test]'")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    read = json.loads(JSONEncoder().encode(models.Dashboard.from_json(MADE)))
    assert lost(MADE, read, "dashboard") == []
    kinds = {panel["type"] for panel in MADE["panels"]}
    assert kinds <= {"stat", "timeseries", "table"}, "panels that every Grafana has"


def lost(written: Any, read: Any, place: str) -> list[str]:
    """What is in the first and not in the second."""
    if isinstance(written, dict):
        missing = [f"{place}.{key}" for key in written if not isinstance(read, dict) or key not in read]
        return missing + [one for key in written if f"{place}.{key}" not in missing
                          for one in lost(written[key], read[key], f"{place}.{key}")]  # fmt: skip
    if isinstance(written, list):
        pairs = zip(written, read, strict=True)
        return [one for number, (a, b) in enumerate(pairs) for one in lost(a, b, f"{place}[{number}]")]
    return [] if written == read else [f"{place}: {written!r} became {read!r}"]
