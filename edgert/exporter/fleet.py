"""``edgert export`` for boards in the field: deploys bundles by Ansible, systemd, Docker Compose or Kubernetes.

Docker Compose also starts Prometheus and Grafana. The files are in ``configs/``: names that end with ``.j2`` are Jinja2
templates, the other files are copied.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgert import files, installation, units
from edgert._version import __version__
from edgert.board import HOST
from edgert.board.record import board
from edgert.bundle.bundle import Bundle, is_bundle, open_bundle
from edgert.config.document import parse_document
from edgert.errors import ArtifactError, ConfigError

FleetFormat = Literal["ansible", "compose", "systemd", "kubernetes"]
FLEET_FORMATS: tuple[FleetFormat, ...] = get_args(FleetFormat)
USER_FILES = ("inventory.yaml", "targets.yaml")
"""Files that the user edits; a later export does not change them."""
PROGRAM = "/opt/edgert/bin/edgert"
"""Program that ``scripts/setup-jetson --system`` installs."""
_IMAGES = {"tegra234": "jetpack6", "tegra264": "jetpack7"}
_MOUNTS = ("/tmp", "/etc/nv_tegra_release", "/etc/nvpmodel.conf", "/var/lib/nvpmodel")  # noqa: S108 - sockets of the camera daemon
_VARIABLE = re.compile(r"\$\{\w+\}")
"""A variable without a default; no exported file needs its value."""
_UNIT = "edgert@.service"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_BOARD = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Page:
    """Address of a pipeline's live page on the board."""

    host: str
    port: int
    has_token: bool
    has_tls: bool

    @property
    def local_host(self) -> str:
        """Host under which the board itself reaches the page."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost") else self.host  # noqa: S104 - only compared

    @property
    def ready_url(self) -> str:
        """URL that tells whether the pipeline is ready."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host  # an IPv6 address
        return f"http{'s' if self.has_tls else ''}://{host}:{self.port}/readyz"


@dataclass(frozen=True, slots=True)
class Release:
    """A bundle to deploy.

    ``name`` is the pipeline's, safe as a file name and as an instance of systemd.
    """

    path: Path
    digest: str
    name: str
    board: str
    page: Page | None

    @property
    def file_name(self) -> str:
        """File name that differs between kinds of board."""
        return f"{self.name}-{self.board}.edgert"

    @property
    def ready_url(self) -> str:
        """URL that tells whether the pipeline is ready; empty without a page."""
        return self.page.ready_url if self.page is not None else ""

    @property
    def image(self) -> str:
        """Container image that can run it. Raises ConfigError for a board without one."""
        if self.board == HOST:
            return "cpu"
        chip = board(self.board).soc
        if chip not in _IMAGES:
            known = "images are for Orin and Thor: docs/docker.md"
            raise ConfigError(f"there is no image for {self.board}", why=known, fix="--format ansible, or systemd")
        return _IMAGES[chip]


def read_releases(paths: Sequence[Path]) -> list[Release]:
    """Read bundles of one pipeline, each for another kind of board. Raises ConfigError: they are not such bundles."""
    releases = list(map(_release, paths))
    names = sorted({one.name for one in releases})
    if len(names) > 1:
        fix = f"export each into a folder of its own; or give both the name {names[0]!r}, by name: in the pipeline file"
        raise ConfigError("the bundles are of several pipelines", why=", ".join(names), fix=fix)
    for release in releases:
        same_board = [str(other.path) for other in releases if other.board == release.board]
        if len(same_board) > 1:
            what = f"{len(same_board)} bundles are for {release.board}"
            raise ConfigError(what, why=", ".join(same_board), fix="name one for each kind of board")
    return releases


def _release(path: Path) -> Release:
    if path.is_dir() or not is_bundle(path):
        what = "a folder" if path.is_dir() else "no bundle"
        fix = f"edgert build {path} --board NAME -o {path.stem}.edgert, and name that"
        raise ConfigError(f"{path} is {what}", why="boards get a bundle, which is one file", fix=fix)
    with open_bundle(path) as bundle:
        if not _BOARD.fullmatch(bundle.manifest.board):
            why = f"{bundle.manifest.board!r} is the name of no board"
            raise ArtifactError(f"{path} cannot be exported", why=why, fix="build the bundle again")
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", bundle.manifest.name).strip("-.") or "pipeline"
        return Release(path, files.digest_of_file(path), name, bundle.manifest.board, _page(bundle, path))


def _page(bundle: Bundle, path: Path) -> Page | None:
    """Return the first live page with a fixed host and port in a pipeline. Raises ArtifactError: it is damaged."""
    text = _VARIABLE.sub("-", bundle.read(bundle.manifest.pipeline).decode(errors="replace"))
    document = parse_document(text, Path(bundle.manifest.pipeline), env={}, has_overlay=False)
    stages = document.data.get("stages", {})
    if not isinstance(stages, Mapping) or not all(isinstance(stage, Mapping) for stage in stages.values()):
        why = "stages: in its pipeline file is no table of stages"
        raise ArtifactError(f"{path} cannot be exported", why=why, fix="build the bundle again")
    for stage in stages.values():
        port, host = units.whole_number(str(stage.get("port", 8080))), str(stage.get("host", "127.0.0.1"))
        if stage.get("sink") == "http" and port and host != "-":  # that is a variable
            return Page(host, port, bool(stage.get("token")), bool(stage.get("tls")))
    return None


def export_fleet(paths: Sequence[Path], format: FleetFormat, output: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Write the files of a format below a folder, from bundles of one pipeline, each for another kind of board.

    Returns the paths of written files, and notes on what the format cannot express or the user has to do.
    """
    if output.exists() and not output.is_dir():
        raise ArtifactError(f"cannot write {str(output)!r}", why="it is a file", fix="name a folder")
    releases = read_releases(paths)
    formats = {"ansible": _ansible, "compose": _compose, "systemd": _systemd, "kubernetes": _kubernetes}
    written, notes = [], list(_format_notes(format, releases))
    for name, content in formats[format](releases).items():
        target = output / name
        if target.name in USER_FILES and target.exists():
            notes.append(f"{name} exists, and may have your changes: it was not replaced")
            continue
        if isinstance(content, Path):
            with content.open("rb") as bundle, files.replacing(target) as file:
                shutil.copyfileobj(bundle, file)
        else:
            files.replace_bytes(target, content.encode())
        written.append(target)
    return tuple(written), tuple(notes)


def _format_notes(format: FleetFormat, releases: Sequence[Release]) -> Iterator[str]:
    pages = [one.page for one in releases]
    if format == "compose" and not all(page and page.host not in _LOOPBACK for page in pages):
        yield "Prometheus reaches no page on a loopback address: host: 0.0.0.0 and token: ${PAGE_TOKEN} at sink: http"
    if format == "kubernetes" and not all(pages):
        yield "without sink: http, whether it is ready is not known: a pod counts as ready once it runs"
    if format == "systemd" and len(releases) > 1:
        yield "each kind of board has a folder of its own"


Files = Mapping[str, "str | Path"]
"""Texts, or paths of files to copy, by path below the folder."""


def _ansible(releases: Sequence[Release]) -> Files:
    missing = [str(one.path) for one in releases if one.page is None]
    if missing:
        raise ConfigError(
            "a rollout cannot be watched",
            why=f"the pipeline of {', '.join(missing)} has no sink: http with a fixed host and port to ask",
            fix="page: {sink: http, from: STAGE} in the pipeline file, and build it again",
        )
    role = "roles/edgert"
    copied = ("rollout.yaml", "inventory.yaml", f"{role}/tasks/main.yaml", f"{role}/templates/bundle.conf.j2")
    defaults = f"{role}/defaults/main.yaml"
    return {
        **{name: _read_config(f"fleet/ansible/{name}") for name in copied},
        defaults: render(f"fleet/ansible/{defaults}.j2", releases=releases, version=__version__),
        f"{role}/templates/{_UNIT}": _read_config(f"systemd/{_UNIT}"),
        **{f"{role}/files/{one.file_name}": one.path for one in releases},
    }


def drop_in(bundle: str) -> str:
    """Return the drop-in file that makes a systemd unit run a bundle."""
    template = "fleet/ansible/roles/edgert/templates/bundle.conf.j2"
    return render(template, edgert_program=PROGRAM, edgert_bundle=bundle)


def _systemd(releases: Sequence[Release]) -> Files:
    found: dict[str, str | Path] = {}
    for one in releases:
        below = f"{one.board}/" if len(releases) > 1 else ""
        bundle = f"{one.name}.edgert"
        found |= {
            f"{below}{_UNIT}": _read_config(f"systemd/{_UNIT}"),
            f"{below}edgert@{one.name}.service.d/bundle.conf": drop_in(f"/etc/edgert/{bundle}"),
            f"{below}{bundle}": one.path,
        }
    return found


def compose_file(release: Release) -> str:
    """Return the compose file of a board."""
    title = board(release.board).title if release.board != HOST else "a machine without a GPU"
    jetpack = release.image.startswith("jetpack")
    return render("fleet/compose/compose.yaml.j2", release=release, title=title, jetpack=jetpack)


def _compose(releases: Sequence[Release]) -> Files:
    pages = [one.page for one in releases if one.page is not None]
    about = {
        "has_token": any(page.has_token for page in pages),
        "has_tls": any(page.has_tls for page in pages),
        "port": pages[0].port if pages else 8080,
    }
    found: dict[str, str | Path] = {}
    for one in releases:
        below = f"{one.board}/" if len(releases) > 1 else ""
        found |= {f"{below}compose.yaml": compose_file(one), f"{below}{one.name}.edgert": one.path}
    for name in ("watch.yaml", "prometheus.yaml", "targets.yaml", "grafana/edgert.json"):
        found[name] = render(f"fleet/compose/{name}.j2", **about)
    for name in ("datasources.yaml", "dashboards.yaml"):
        found[f"grafana/{name}"] = _read_config(f"fleet/compose/grafana/{name}")
    return {**found, "alerts.yaml": _read_config("prometheus/alerts.yaml")}


def _kubernetes(releases: Sequence[Release]) -> Files:
    found: dict[str, str | Path] = {}
    for one in releases:
        kind = board(one.board) if one.board != HOST else None
        id = re.sub(r"[^a-z0-9]+", "-", f"{one.name}-{one.board}".lower()).strip("-")[:50].strip("-")
        file, manifest = f"{id}.Dockerfile", f"{id}.yaml"
        about = {"release": one, "id": id, "image": f"edgert-{id}:{one.digest[:16]}", "jetpack": kind is not None}
        about |= {"title": kind.title if kind else "machine without a GPU", "mounts": _MOUNTS if kind else ()}
        found[manifest] = render("fleet/kubernetes/daemonset.yaml.j2", **about, file=manifest)
        found[file] = render("fleet/kubernetes/image.Dockerfile.j2", **about, file=file)
        found[one.file_name] = one.path
    return found


def _read_config(name: str) -> str:
    return (installation.data_folder("configs") / name).read_text(encoding="utf-8")


def render(template: str, /, **values: Any) -> str:
    """Render a template of ``configs/``, which quotes text for YAML by ``tojson``."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701 - no HTML
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["mount"] = lambda path: re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")
    return environment.from_string(_read_config(template)).render(**values)
