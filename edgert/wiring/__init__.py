"""Is a model wired right? Tries the plausible ways to feed and read it on photos, and ranks them by evidence."""
