"""Hypothesis without deadlines: a loaded machine is not a slow parser. pytest-timeout finds hangs."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
