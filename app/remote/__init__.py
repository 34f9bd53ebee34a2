"""A Realtime server as the engine of a session."""
