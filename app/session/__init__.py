"""One running conversation: commands in, events out, and the two threads between microphone, engine and
speaker."""
