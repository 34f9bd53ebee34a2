"""Tests, laid out as the tree they test."""
