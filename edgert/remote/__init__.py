"""``edgert build --remote``: a bundle compiled on its board, from a workstation, through the system's OpenSSH.

build_remote(source, output, address, …) → RemoteBuilt      workstation: poll, build, send, start, watch, fetch
edgert.remote.board_actions                                       board: a job that no lost link can hurt

The two talk in lines of JSON over the standard streams of ``edgert job`` on the board; versions must be the same.
"""
