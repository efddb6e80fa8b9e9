"""``edgert build --remote``: a bundle is compiled on its board, for a workstation that uses the system's OpenSSH.

remote_build.build_remote(source, output, address) → RemoteBuilt    workstation: probe, build, send, watch, fetch
board_job.perform(words, …)                                         board: a job that survives a lost connection

They exchange lines of JSON over the standard streams of ``edgert job``. Both must have the same version.
"""
