"""``edgert build --tune``: a search for the settings that run a model fastest on this machine.

``tactic_search.Search`` compares candidates in interleaved runs and chooses the fastest that meets all bounds.
"""
