"""Losses of unclean leader elections: find the archived messages that a log lost, and publish them again."""
