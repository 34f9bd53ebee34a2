"""Benchmarks of an engine: complete replies (`replies`), single stages against the measured ceilings of the
machine (`stages`), several conversations (`simultaneous`), and comparisons with other implementations
(`compare`, `verify`)."""
