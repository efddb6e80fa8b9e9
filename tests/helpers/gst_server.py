"""A real RTSP server, of GStreamer's, in a process of its own: any codec, user and password, changes in mid-stream.

It runs in a Python that sees PyGObject, which is the system's:

    sudo apt-get install python3-gi gir1.2-gst-rtsp-server-1.0
    sudo apt-get install gstreamer1.0-plugins-{base,good,bad,ugly} gstreamer1.0-libav
"""

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.helpers.command import ServerProcess, free_port

_FAST = "tune=zerolatency speed-preset=ultrafast key-int-max=15"
# GStreamer 1.22 repeats the parameter sets in front of each slice of a key frame, which is then two for FFmpeg.
CODECS = {
    "h264": f"x264enc sliced-threads=false {_FAST} ! rtph264pay config-interval=-1",
    "h265": f"x265enc {_FAST} ! rtph265pay config-interval=-1",
    "jpeg": "jpegenc ! rtpjpegpay",
}
_ASKED = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
SYSTEMS = "/usr/bin/python3"


@lru_cache(1)
def python() -> str:
    """One that can serve; empty where none can."""
    for path in (sys.executable, SYSTEMS):
        if (
            Path(path).exists()
            and not subprocess.run([path, "-c", _ASKED], capture_output=True, check=False).returncode
        ):
            return path
    return ""


class GstServer(ServerProcess):
    """The other side of the program below."""

    def __init__(self, host: str = "127.0.0.1", wrap: tuple[str, ...] = (), login: str = "") -> None:
        """``wrap``: a command in front, like ``ip netns exec NAME``."""
        self._wrap, self._host, self._login, self.port = wrap, host, login, free_port()
        self.url = f"rtsp://{login}{'@' * bool(login)}{host}:{self.port}/live"
        self._shown: dict[str, object] = {}

    def start(self) -> None:
        self.serve([*self._wrap, python(), __file__, self._host, str(self.port), self._login])
        if self._shown:
            self._send({"do": "show", **self._shown})

    def show(self, codec: str = "h264", size: tuple[int, int] = (320, 240), fps: int = 15) -> None:
        """Another stream under the same address; who watches the one before is cut off."""
        self._shown = {"codec": codec, "size": size, "fps": fps}
        self._send({"do": "show", **self._shown})

    def play(self, file: Path) -> None:
        """An mp4 of H.264 from now on, whose length the server announces; from its beginning for each connection."""
        self._shown = {"play": str(file)}
        self._send({"do": "show", **self._shown})

    def change(self, size: tuple[int, int], fps: int) -> None:
        self._send({"do": "change", "size": size, "fps": fps})

    def _send(self, what: dict[str, object]) -> None:
        assert self.process is not None and self.process.stdin is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        self.answer()


@contextmanager
def gst_server(host: str = "127.0.0.1", wrap: tuple[str, ...] = (), login: str = "") -> Iterator[GstServer]:
    server = GstServer(host, wrap, login)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def serve(host: str, port: str, login: str) -> None:
    """The program: a JSON object of each line of its input is done, and answered by ``ready``."""
    import gi

    gi.require_version("Gst", "1.0")
    gi.require_version("GstRtsp", "1.0")
    gi.require_version("GstRtspServer", "1.0")
    from gi.repository import GLib, Gst, GstRtsp, GstRtspServer

    Gst.init(None)
    server = GstRtspServer.RTSPServer(address=host, service=port)
    medias = list[Any]()
    if login:
        user, _, password = login.partition(":")
        auth, token = GstRtspServer.RTSPAuth(), GstRtspServer.RTSPToken()
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "user")
        auth.add_digest(user, password, token)
        server.set_auth(auth)

    def caps(asked: dict[str, Any]) -> str:
        width, height = asked["size"]
        return f"video/x-raw,format=I420,width={width},height={height},framerate={asked['fps']}/1"

    def show(asked: dict[str, Any]) -> None:
        server.client_filter(lambda *_: GstRtspServer.RTSPFilterResult.REMOVE)
        medias.clear()
        factory = GstRtspServer.RTSPMediaFactory()
        if path := asked.get("play"):
            launch = f"filesrc location={path} ! qtdemux ! h264parse ! rtph264pay name=pay0 pt=96 config-interval=-1"
        else:
            encode, _, pay = CODECS[asked["codec"]].partition(" ! ")
            launch = (
                f"videotestsrc is-live=true ! capsfilter name=caps caps={caps(asked)} ! {encode} ! {pay} name=pay0 pt="
                f"{26 if asked['codec'] == 'jpeg' else 96}"
            )
        factory.set_launch(f"( {launch} )")
        factory.set_shared(not path)
        factory.connect("media-configure", lambda _, media: medias.append(media))
        if login:
            allowed = GstRtspServer.RTSPPermissions()
            for what in ("media.factory.access", "media.factory.construct"):
                allowed.add_permission_for_role("user", what, True)
            factory.set_permissions(allowed)
        server.get_mount_points().add_factory("/live", factory)

    def change(asked: dict[str, Any]) -> None:
        for media in medias:
            media.get_element().get_by_name("caps").set_property("caps", Gst.Caps.from_string(caps(asked)))

    def do(line: str) -> bool:
        try:
            asked = json.loads(line)
            (show if asked["do"] == "show" else change)(asked)
            print("ready", flush=True)
        except BaseException:  # noqa: BLE001 - GLib would go on
            traceback.print_exc()
            os._exit(1)
        return False

    def read() -> None:
        for line in sys.stdin:
            GLib.idle_add(do, line)
        GLib.idle_add(loop.quit)

    loop = GLib.MainLoop()
    server.attach(None)
    print("ready", flush=True)
    threading.Thread(target=read, daemon=True).start()
    loop.run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
