"""The streaming side of the codec networks: speech to codes, codes to mel, mel to speech."""
