"""The voice to speak with, made of a recording."""
