"""Program that shows raw BGRx images from standard input in an SDL window. Only this module imports PySDL2.

``python -m edgert.stages.sink.sdl_viewer WIDTH HEIGHT TITLE FULLSCREEN``; without arguments it only opens the display.
Esc, q or the window's button closes it; f toggles full screen.
"""

import ctypes
import os
import select
import sys
from typing import Any

_TICK_S = 0.03


def main(arguments: list[str]) -> None:
    """Show images until the input ends. Exits with a message when the display fails or its window is closed."""
    import sdl2

    def checked(done: object) -> Any:
        if not done:
            sys.exit(sdl2.SDL_GetError().decode(errors="replace") or "SDL gives no reason")
        return done

    sdl2.SDL_SetHint(b"SDL_VIDEO_X11_NET_WM_BYPASS_COMPOSITOR", b"0")
    checked(sdl2.SDL_Init(sdl2.SDL_INIT_VIDEO) == 0)
    if not arguments:
        return
    width, height, title, fill = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3] == "1"
    flags, anywhere = sdl2.SDL_WINDOW_RESIZABLE, sdl2.SDL_WINDOWPOS_CENTERED
    window = checked(sdl2.SDL_CreateWindow(title.encode(), anywhere, anywhere, width, height, flags))
    renderer = checked(sdl2.SDL_CreateRenderer(window, -1, 0))
    sdl2.SDL_RenderSetLogicalSize(renderer, width, height)  # keeps the image's aspect ratio
    sdl2.SDL_SetHint(b"SDL_RENDER_SCALE_QUALITY", b"linear")
    streaming = sdl2.SDL_TEXTUREACCESS_STREAMING
    texture = checked(sdl2.SDL_CreateTexture(renderer, sdl2.SDL_PIXELFORMAT_RGB888, streaming, width, height))
    image, event, filled, is_full = bytearray(width * height * 4), sdl2.SDL_Event(), 0, False
    pixels = (ctypes.c_char * len(image)).from_buffer(image)
    sdl2.SDL_UpdateTexture(texture, None, pixels, width * 4)  # black
    while True:
        if fill:
            is_full = not is_full
            _place(sdl2, window, (anywhere, anywhere, width, height), is_full)
        fill, exposed = False, False
        while sdl2.SDL_PollEvent(ctypes.byref(event)):
            key = event.key.keysym.sym if event.type == sdl2.SDL_KEYDOWN else None
            if event.type == sdl2.SDL_QUIT or key in (sdl2.SDLK_ESCAPE, sdl2.SDLK_q):
                sys.exit("Output window was closed")  # the message of GStreamer's sinks
            exposed, fill = exposed or event.type == sdl2.SDL_WINDOWEVENT, fill or key == sdl2.SDLK_f
        if select.select([0], [], [], _TICK_S)[0]:
            count = os.readv(0, [memoryview(image)[filled:]])
            if not count:
                return
            filled += count
        if exposed or filled == len(image):
            if filled == len(image):
                sdl2.SDL_UpdateTexture(texture, None, pixels, width * 4)
                filled = 0
            sdl2.SDL_RenderClear(renderer)
            sdl2.SDL_RenderCopy(renderer, texture, None, None)
            sdl2.SDL_RenderPresent(renderer)


def _place(sdl2: Any, window: Any, place: tuple[int, int, int, int], is_full: bool) -> None:
    """Make a window fill the screen, or move it back to (x, y, width, height)."""
    sdl2.SDL_SetWindowFullscreen(window, 0)
    sdl2.SDL_SetWindowBordered(window, not is_full)
    if is_full:
        screen = sdl2.SDL_Rect()
        sdl2.SDL_GetDisplayBounds(max(0, sdl2.SDL_GetWindowDisplayIndex(window)), ctypes.byref(screen))
        place = screen.x, screen.y, screen.w, screen.h
    sdl2.SDL_SetWindowSize(window, *place[2:])
    sdl2.SDL_SetWindowPosition(window, *place[:2])
    # The size above works without a window manager; a window manager also hides its panels.
    sdl2.SDL_SetWindowFullscreen(window, is_full * sdl2.SDL_WINDOW_FULLSCREEN_DESKTOP)
    sdl2.SDL_ShowCursor(not is_full)


if __name__ == "__main__":
    main(sys.argv[1:])
