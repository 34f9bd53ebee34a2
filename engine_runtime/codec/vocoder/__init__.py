"""Mel to samples, packet by packet."""
