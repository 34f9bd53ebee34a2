"""Speech to codes, while it is spoken."""
