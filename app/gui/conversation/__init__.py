"""The conversation: transcript, typed and sample questions, kept conversations."""
