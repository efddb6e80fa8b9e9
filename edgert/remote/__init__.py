"""``edgert build --remote``: a bundle compiled on its board, from a workstation, through the system's OpenSSH.

build_there(source, output, address, …) → BuiltThere      workstation: look, build, send, start, watch, fetch
edgert.remote.on_board                                       board: a job that no lost link can hurt

The two talk in lines of JSON over the standard streams of ``edgert job`` on the board; versions must be the same.
"""
