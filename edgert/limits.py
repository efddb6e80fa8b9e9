"""Upper limits of outside input: each number once, with its meaning and reason. SECURITY.md shows :data:`TABLE`."""

YAML_LEVELS = 32
YAML_VALUES = 100_000
YAML_CHARACTERS = 4 << 20
MODEL_BYTES = 2**31 - 1
WEIGHTS_BYTES = 1 << 33
MODEL_NODES = 1_000_000
OPERATOR_SET = 10_000
DIMENSION = 2**31 - 1
RANK = 32
TRIAL_RUN_S = 60.0
INPUT_ELEMENTS = 1 << 27
COMPARED_BYTES = 1 << 29
RESIZED_SIDE = 1 << 16
BUNDLE_MEMBERS = 10_000
MEMBER_PATH = 240
SIGNATURE_BYTES = 1 << 14
TRACE_OBJECTS = 100_000
WHOLE_NUMBER = 2**53
STATE_BYTES = 1 << 20
CONTROL_CLIENTS = 16
TRACE_S = 60.0
TRACE_BYTES = 1 << 25
CONTROL_LINE_BYTES = 1 << 20
CONTROL_LINE_S = 2.0
PAGE_CONNECTIONS = 384
PAGE_VIEWERS = 8
PAGE_STREAMS = 64
PAGE_HEAD_S = 5.0
PAGE_SEND_S = 10.0
PAGE_HEAD_BYTES = 1 << 14
WEBRTC_VIEWERS = 16
WHEP_BYTES = 1 << 16
WHEP_CANDIDATES = 20
RTSP_CONNECTIONS = 384
RTSP_IDLE_S = 10.0
GALLERY_BYTES = 1 << 27
GALLERY_JSON_BYTES = 1 << 25
GALLERY_NAMES = 1_000_000
ANSWER_BYTES = 1 << 16
EXCHANGE_S = 20.0
PACKET_BYTES = 1 << 20
SENT_CAMERAS = 64
SENT_PIXELS = 1 << 24
SENT_CROPS = 64
ROS_PIXELS = 1 << 25
IMAGE_PIXELS = 1 << 28
BAG_CHUNK_BYTES = 1 << 27


def _power(count: int) -> str:
    """Return ``2²⁷`` for 2 to the power of 27."""
    return "2" + str(count.bit_length() - 1).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


TABLE = (
    ("pipeline file", f"{YAML_CHARACTERS:,} characters", "it is held in memory; a device never ends"),
    ("nesting of a YAML file", f"{YAML_LEVELS} levels", "the parser calls itself, and the stack ends the process"),
    ("values of a YAML file, its aliases followed", f"{YAML_VALUES:,}", "aliases multiply without end"),
    ("model with its weights inside", f"{(MODEL_BYTES + 1) >> 30} GiB", "Protocol Buffers has no larger message"),
    ("weights beside a model", f"{WEIGHTS_BYTES >> 30} GiB", "they are held in memory; a sparse file claims any size"),
    ("nodes of a model, its functions put in place", f"{MODEL_NODES:,}", "functions in functions multiply"),
    ("version of an operator set", f"{OPERATOR_SET:,}", "onnx holds 32 bits and has counted to 26"),
    ("dimension of a tensor", f"{DIMENSION:,}", "what TensorRT counts to; arithmetic on more overflows"),
    ("dimensions of a tensor", f"{RANK}", "NumPy 1 holds no more, and networks have up to six"),
    ("input of a model", f"{_power(INPUT_ELEMENTS)} elements", "an image of 44 megapixels; more ends the process"),
    ("trial run of a model", f"{TRIAL_RUN_S:g} s", "a Loop need not end"),
    ("tensors of a model run beside its rewritten form", f"{COMPARED_BYTES >> 20} MiB", "both are run on noise"),
    ("side of an image that a Resize makes", f"{RESIZED_SIDE:,} pixels", "weights are computed for each"),
    ("members of a bundle", f"{BUNDLE_MEMBERS:,}", "all of them are read before one is used"),
    ("path of a member", f"{MEMBER_PATH} characters", "what every file system takes"),
    ("signature of a bundle", f"{SIGNATURE_BYTES >> 10} KiB", "it is held in memory; a large RSA key makes 2 KiB"),
    ("objects on a frame of a trace", f"{TRACE_OBJECTS:,}", "they are simulated one by one"),
    ("whole numbers of annotations and boards", f"±{_power(WHOLE_NUMBER)}", "floats leave some out beyond"),
    ("answer of a pipeline to `edgert top`", f"{STATE_BYTES >> 20} MiB", "it is held in memory"),
    ("request of `edgert ctl`", f"{CONTROL_LINE_BYTES >> 20} MiB", "it is held in memory"),
    ("time from connecting to the end of that request", f"{CONTROL_LINE_S:g} s", "slow clients would hold connections"),
    ("window of `edgert ctl trace`", f"{TRACE_S:g} s", "what is recorded is held in memory"),
    ("answer to it", f"{TRACE_BYTES >> 20} MiB", "it is held in memory; events beyond are counted as lost"),
    ("requests of `edgert ctl` that are read at a time", f"{CONTROL_CLIENTS}", "each holds a descriptor"),
    (
        "connections to the live page or `sink: webrtc`, and viewers beside them",
        f"{PAGE_CONNECTIONS} and {PAGE_VIEWERS}",
        "each holds a descriptor; at most half say nothing; the address with most of them gives way",
    ),
    ("cameras on the live page", f"{PAGE_STREAMS}", "a frame of each is held"),
    ("request to the page", f"{PAGE_HEAD_BYTES >> 10} KiB", "it is held in memory"),
    ("viewers by WebRTC", f"{WEBRTC_VIEWERS}", "each is sent, and encrypted, a copy of its own"),
    ("offer of a viewer by WebRTC", f"{WHEP_BYTES >> 10} KiB", "it is held in memory"),
    ("addresses of an offer that are tried", f"{WHEP_CANDIDATES}", "each is sent packets; only those of who asks"),
    ("time to a whole request to a server, TLS included", f"{PAGE_HEAD_S:g} s", "slow clients would hold it"),
    ("time to take 64 KiB of an answer", f"{PAGE_SEND_S:g} s", "as before"),
    ("connections to `sink: rtsp`", f"{RTSP_CONNECTIONS}", "as to the live page, for those that ask or play"),
    ("time without playing on one of them", f"{RTSP_IDLE_S:g} s", "a silent client would hold it"),
    ("gallery, unpacked", f"{GALLERY_BYTES >> 20} MiB", "a small archive unpacks to anything"),
    ("gallery as `.json`", f"{GALLERY_JSON_BYTES >> 20} MiB", "its numbers take ten times as much in memory"),
    ("vectors of a gallery", f"{GALLERY_NAMES:,}", "the name of each is held in memory"),
    ("answer of a webhook, its headers included", f"{ANSWER_BYTES >> 10} KiB", "no more of it is of interest"),
    ("time of a webhook's request and answer", f"{EXCHANGE_S:g} s", "what waits behind it is held up"),
    ("message of a broker (nats: twice; Kafka: 16 times)", f"{PACKET_BYTES >> 20} MiB", "it is held in memory"),
    ("cameras of `source: nats`", f"{SENT_CAMERAS}", "a message of each is held"),
    ("image in a message to `source: nats`", f"{_power(SENT_PIXELS)} pixels", "a small JPEG unpacks to anything"),
    ("images in one of these messages", f"{SENT_CROPS}", "each is decoded, and becomes a frame"),
    ("JPEG or PNG in a message of ROS 2", f"{_power(ROS_PIXELS)} pixels", "a few bytes of it unpack to anything"),
    ("image file", f"{_power(IMAGE_PIXELS)} pixels", "as before; OPENCV_IO_MAX_IMAGE_PIXELS allows more"),
    ("chunk of an MCAP bag, unpacked", f"{BAG_CHUNK_BYTES >> 20} MiB", "as before"),
)
"""Rows: subject, limit, reason."""
