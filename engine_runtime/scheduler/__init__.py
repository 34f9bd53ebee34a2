"""The scheduler: many conversations in one engine thread, their work in batched calls."""
