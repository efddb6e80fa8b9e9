"""INT8 that is right: measured ranges, where a graph is rounded, and the graph that results. Graph in, Graph out."""
