"""Suites: the tables and figures of the paper as settings, with the paper's own numbers."""
