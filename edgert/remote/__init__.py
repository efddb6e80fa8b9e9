"""``edgert build --remote``: a bundle compiled on its board, from a workstation, through the system's OpenSSH.

remote_build.build_remote(source, output, address) → RemoteBuilt    workstation: probe, build, send, start, watch, fetch
board_actions.perform(words, …)                                     board: a job that survives a lost connection

The two exchange lines of JSON over the standard streams of ``edgert job`` on the board; versions must be the same.
"""
