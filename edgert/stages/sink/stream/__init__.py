"""Live video to players elsewhere: over RTSP, and to browsers over WebRTC."""
