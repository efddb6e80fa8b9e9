"""The pipelines that bench_unseen.py foretells.

None is measured, nor are rates fitted with its networks; frames of two are as large as those that stages are measured
with.
"""

from __future__ import annotations

from unseen import Case, boxes, camera

SECONDS = 10.0
"""Of a run with cameras."""
FILMS = {"unseen.mp4": "960x540", "shelf.mp4": "1280x720", "archive.mp4": "640x360", "reel.mp4": "854x480"}
FIRST = (
    Case(
        "watch",
        {"find": ("parts", "backend: ort")},
        camera("camera", "1280x720", 30, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(6, "find")
        + "  track: {track: bytetrack, from: boxes}\n  paint: {draw: [boxes, labels], from: track}\n"
        "  events: {sink: jsonl, from: paint, path: watch.jsonl}\n",
        6,
    ),
    Case(
        "film",
        {"name": ("squeezenet_fp32", "backend: ort")},
        "  film: {source: unseen.mp4, decode: cpu, loop: true, limit: 3000}\n  name: {infer: name, from: film}\n"
        "  events: {sink: jsonl, from: name, path: film.jsonl}\n",
    ),
    Case(
        "cascade",
        {
            "find": ("nanodet_m_320", "backend: ort, placement: cpu0"),
            "read": ("osnet_x0_25_msmt17", "backend: ort, placement: cpu1"),
        },
        camera("camera", "800x600", 25, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(4, "find")
        + "  read: {infer: read, from: boxes, crop: {limit: 4}}\n  end: {sink: 'null', from: read}\n",
        4,
    ),
    Case(
        "yards",
        {"find": ("yolox_nano_416", "backend: ort, threads: 1")},
        camera("gate", "960x540", 15, SECONDS)
        + camera("yard", "960x540", 12, SECONDS)
        + "  find: {infer: find, from: [gate, yard]}\n"
        + boxes(10, "find")
        + "  track: {track: bytetrack, from: boxes}\n  events: {sink: jsonl, from: track, path: yards.jsonl}\n",
        10,
    ),
    Case(
        "overload",
        {"find": ("ultraface_rfb_320", "backend: ort, placement: cpu0")},
        camera("camera", "640x360", 500, SECONDS)
        + "  find: {infer: find, from: camera}\n  end: {sink: 'null', from: find}\n",
    ),
    Case(
        "branches",
        {
            "find": ("parts", "backend: ort, placement: cpu0"),
            "name": ("squeezenet_fp32", "backend: ort, placement: cpu1"),
        },
        camera("camera", "1024x576", 25, SECONDS)
        + "  find: {infer: find, from: camera}\n  name: {infer: name, from: camera}\n"
        + boxes(8, "[find, name]", "both")
        + "  track: {track: bytetrack, from: both}\n  paint: {draw: [boxes, labels, trails, stats], from: track}\n"
        "  files: {sink: images, from: paint, path: images}\n",
        8,
    ),
)
"""Those with which the forms of what is measured were found."""
SECOND = (
    Case(
        "shelf",
        {"look": ("osnet_x0_25_msmt17", "backend: ort")},
        "  film: {source: shelf.mp4, decode: cpu, loop: true, limit: 1500}\n  look: {infer: look, from: film}\n"
        "  events: {sink: jsonl, from: look, path: shelf.jsonl}\n",
    ),
    Case(
        "archive",
        {"find": ("yolox_nano_416", "backend: ort")},
        "  film: {source: archive.mp4, decode: cpu, loop: true, limit: 800}\n  find: {infer: find, from: film}\n"
        "  end: {sink: 'null', from: find}\n",
    ),
    Case(
        "doors",
        {"find": ("yunet_120x160", "backend: ort, threads: 1")},
        camera("front", "640x360", 20, SECONDS)
        + camera("back", "640x360", 20, SECONDS)
        + "  find: {infer: find, from: [front, back]}\n"
        + boxes(3, "find")
        + "  paint: {draw: [boxes, labels], from: boxes}\n  events: {sink: jsonl, from: paint, path: doors.jsonl}\n",
        3,
    ),
    Case(
        "flood",
        {"name": ("mobilenet_v1_025_224", "backend: ort, placement: cpu1")},
        camera("camera", "800x600", 600, SECONDS)
        + "  name: {infer: name, from: camera}\n  events: {sink: jsonl, from: name, path: flood.jsonl}\n",
    ),
    Case(
        "people",
        {
            "find": ("nanodet_m_320", "backend: ort"),
            "read": ("person_reid_retail_0288", "backend: ort, placement: cpu1"),
        },
        camera("camera", "1280x720", 10, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(5, "find")
        + "  read: {infer: read, from: boxes, crop: {limit: 5}}\n  track: {track: bytetrack, from: read}\n"
        "  events: {sink: jsonl, from: track, path: people.jsonl}\n",
        5,
    ),
    Case(
        "counter",
        {
            "find": ("ultraface_rfb_320", "backend: ort, placement: cpu0"),
            "name": ("squeezenet_fp32", "backend: ort, placement: cpu1"),
        },
        camera("camera", "960x540", 30, SECONDS)
        + "  find: {infer: find, from: camera}\n  name: {infer: name, from: camera}\n"
        + boxes(6, "[find, name]", "both")
        + "  track: {track: bytetrack, from: both}\n  paint: {draw: [boxes, labels, trails, stats], from: track}\n"
        "  end: {sink: 'null', from: paint}\n",
        6,
    ),
)
"""Those that were written down afterwards, before any of them ran. What runs take after brief rests, and on a thread
that sleeps, was changed later, with these and the third in sight."""
THIRD = (
    Case(
        "lobby",
        {"find": ("ultraface_rfb_320", "backend: ort")},
        camera("camera", "1920x1080", 15, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(4, "find")
        + "  paint: {draw: [boxes, labels], from: boxes}\n  events: {sink: jsonl, from: paint, path: lobby.jsonl}\n",
        4,
    ),
    Case(
        "reel",
        {"find": ("nanodet_m_320", "backend: ort")},
        "  film: {source: reel.mp4, decode: cpu, loop: true, limit: 800}\n  find: {infer: find, from: film}\n"
        "  events: {sink: jsonl, from: find, path: reel.jsonl}\n",
    ),
    Case(
        "gates",
        {"look": ("person_reid_retail_0288", "backend: ort, threads: 1")},
        camera("north", "640x480", 10, SECONDS)
        + camera("east", "640x480", 10, SECONDS)
        + camera("west", "640x480", 10, SECONDS)
        + "  look: {infer: look, from: [north, east, west]}\n  events: {sink: jsonl, from: look, path: gates.jsonl}\n",
    ),
    Case(
        "till",
        {
            "find": ("yolox_nano_416", "backend: ort"),
            "name": ("squeezenet_fp32", "backend: ort, placement: cpu1"),
        },
        camera("camera", "800x600", 15, SECONDS)
        + "  find: {infer: find, from: camera}\n"
        + boxes(3, "find")
        + "  name: {infer: name, from: boxes, crop: {limit: 3}}\n  track: {track: bytetrack, from: name}\n"
        "  events: {sink: jsonl, from: track, path: till.jsonl}\n",
        3,
    ),
    Case(
        "rush",
        {"find": ("yunet_120x160", "backend: ort, placement: cpu0")},
        camera("camera", "960x540", 500, SECONDS)
        + "  find: {infer: find, from: camera}\n  end: {sink: 'null', from: find}\n",
    ),
    Case(
        "pair",
        {
            "find": ("nanodet_m_320", "backend: ort, placement: cpu0"),
            "look": ("osnet_x0_25_msmt17", "backend: ort, placement: cpu1"),
        },
        camera("camera", "1280x720", 20, SECONDS)
        + "  find: {infer: find, from: camera}\n  look: {infer: look, from: camera}\n"
        + boxes(5, "[find, look]", "both")
        + "  track: {track: bytetrack, from: both}\n  paint: {draw: [boxes, labels, trails, stats], from: track}\n"
        "  events: {sink: jsonl, from: paint, path: pair.jsonl}\n",
        5,
    ),
)
"""Those that were written down before the start of a run was left out of its latency, and of which nothing had been run
then."""
CASES = (*FIRST, *SECOND, *THIRD)
