"""The voice of replies, from a recording."""
