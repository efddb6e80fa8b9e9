"""``edgert build --tune``: a search for the settings that run a model fastest on this machine.

tactic_search.Search(space, …).run() → Tuned     candidates → interleaved runs → the fastest that meets all bounds
"""
