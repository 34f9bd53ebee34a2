"""A conversation: its history, the user's turn, the reply."""
