"""Benchmarks, run by hand; each prints a ratio against a peer run beside it."""
