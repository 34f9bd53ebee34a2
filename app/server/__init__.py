"""`moss-voice serve`: conversations over the OpenAI Realtime protocol, one process per GPU."""
