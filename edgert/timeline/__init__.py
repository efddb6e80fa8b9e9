"""Time lines of a recorded pipeline: what each thread did, what waited where, and the way of each frame."""
