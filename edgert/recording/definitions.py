"""Fields of the ROS 2 message types that edgert uses.

They are the same in Humble, Jazzy, Kilted and Lyrical; vision_msgs is release 4.
"""

from collections.abc import Mapping

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
DETECTIONS = "vision_msgs/msg/Detection2DArray"
CLASSIFICATION = "vision_msgs/msg/Classification"
VISION_INFO = "vision_msgs/msg/VisionInfo"
DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
VIDEO = "foxglove_msgs/msg/CompressedVideo"

_HEADER = "std_msgs/Header header\n"
DEFINITIONS: Mapping[str, str] = {
    "builtin_interfaces/msg/Time": "int32 sec\nuint32 nanosec",
    "std_msgs/msg/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    IMAGE: f"{_HEADER}uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data",
    COMPRESSED_IMAGE: f"{_HEADER}string format\nuint8[] data",
    CAMERA_INFO: f"{_HEADER}uint32 height\nuint32 width\nstring distortion_model\nfloat64[] d\nfloat64[9] k\n"
    "float64[9] r\nfloat64[12] p\nuint32 binning_x\nuint32 binning_y\nsensor_msgs/RegionOfInterest roi",
    "sensor_msgs/msg/RegionOfInterest": "uint32 x_offset\nuint32 y_offset\nuint32 height\nuint32 width\n"
    "bool do_rectify",
    "geometry_msgs/msg/Point": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/msg/Quaternion": "float64 x 0\nfloat64 y 0\nfloat64 z 0\nfloat64 w 1",
    "geometry_msgs/msg/Pose": "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation",
    "geometry_msgs/msg/PoseWithCovariance": "geometry_msgs/Pose pose\nfloat64[36] covariance",
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score",
    "vision_msgs/msg/ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\n"
    "geometry_msgs/PoseWithCovariance pose",
    "vision_msgs/msg/Detection2D": f"{_HEADER}vision_msgs/ObjectHypothesisWithPose[] results\n"
    "vision_msgs/BoundingBox2D bbox\nstring id",
    DETECTIONS: f"{_HEADER}vision_msgs/Detection2D[] detections",
    CLASSIFICATION: f"{_HEADER}vision_msgs/ObjectHypothesis[] results",
    VISION_INFO: f"{_HEADER}string method\nstring database_location\nint32 database_version",
    "diagnostic_msgs/msg/KeyValue": "string key\nstring value",
    "diagnostic_msgs/msg/DiagnosticStatus": "byte level\nstring name\nstring message\nstring hardware_id\n"
    "diagnostic_msgs/KeyValue[] values",
    DIAGNOSTICS: f"{_HEADER}diagnostic_msgs/DiagnosticStatus[] status",
    VIDEO: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format",
}
"""Message type → lines of its .msg file."""


def full_name(short: str) -> str:
    """Return ``package/msg/Type`` for ``package/Type``, the form in definitions."""
    package, _, name = short.rpartition("/")
    return f"{package.removesuffix('/msg')}/msg/{name}"


def parts_of(name: str) -> list[str]:
    """Return a type and all types that it contains, each once, in the order of first use."""
    found = [name]
    for one in found:
        for line in DEFINITIONS[one].splitlines():
            kind = line.split()[0].partition("[")[0]
            if "/" in kind and full_name(kind) not in found:
                found.append(full_name(kind))
    return found
