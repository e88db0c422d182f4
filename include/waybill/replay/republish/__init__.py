"""Losses of unclean leader elections: which archived messages a log lost, and publishing them again."""
