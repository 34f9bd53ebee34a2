"""Dialog logic: voice activity detection, turn-taking, the transcript. No threads, no devices, no Qt."""
