"""``edgert build``: a pipeline's models prepared for a board on any machine, and packed into one file.

build(file, output, board=…) → Built           workstation: every step but the compilation
finish.finish(bundle, output) → Finished       board: the compilation
unpacked(bundle) → Unpacked                    any machine: the bundle as a pipeline that runs there
"""
