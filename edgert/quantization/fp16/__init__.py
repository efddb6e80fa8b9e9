"""Models in float16, with float32 where float16 loses too much."""
