"""What a conversation is: voice activity, turn-taking, the transcript. No threads, no devices, no Qt."""
