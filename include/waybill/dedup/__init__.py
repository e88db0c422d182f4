"""Dedup sweeps: every key of a stream once over a window."""
