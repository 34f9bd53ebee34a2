"""Codes to mel, packet by packet."""
