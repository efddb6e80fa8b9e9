"""Is a model wired right? Tries the plausible ways to feed and read it on photographs, and ranks them by evidence."""
