"""The sections of bench/partition.py, one module each, and what they share: `archive`, `section`, `job`, `task`."""
