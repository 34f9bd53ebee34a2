"""MOSS-Speech as its makers released it: found or downloaded, checked, and described as a bundle."""
