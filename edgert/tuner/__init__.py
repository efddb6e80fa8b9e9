"""Tactic search: what a model can be run by on this machine, tried in turns until it is sure what is fastest.

tune(task) → Tuned ── .chosen: Tactic ── applied(config, tactic) → the model's section with it
"""
