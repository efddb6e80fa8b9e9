"""ROS 2: messages, sources and sinks over rclpy, over Zenoh without ROS, and from bag files."""
