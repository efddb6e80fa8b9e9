"""Check of how a model is fed and read: the plausible settings are tried on photos and ranked by evidence."""
