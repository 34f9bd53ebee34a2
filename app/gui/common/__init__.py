"""Shared by all rooms: preferences, themes, texts, the error banner, the session's events as signals."""
