"""What the rooms share: preferences, themes, texts, the error banner, the session's events as signals."""
