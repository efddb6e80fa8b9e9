"""The board's side of a remote build: what ``edgert job ACTION`` does, for the workstation that calls it over ssh.

receive DIGEST BYTES     takes a bundle in, from where an earlier transfer broke off
start RUN [strict]       starts a job of its own process group, or joins the one that is at it
follow RUN OFFSET        tells what the job tells, from a place on, to its end
send RUN OFFSET          hands out what the job added to the bundle
cancel RUN               asks the job to end

A connection that breaks ends the action and never the job.
"""

from edgert.remote.on_board.actions import perform

__all__ = ["perform"]
