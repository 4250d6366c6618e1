"""Beside the training line: the command line, and what it does."""
