"""Hypothesis without deadlines: the first call of a compiled loop may compile it. pytest-timeout finds hangs."""

from hypothesis import settings

settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")
