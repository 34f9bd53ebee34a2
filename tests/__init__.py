"""Tests; the layout mirrors the tree."""
