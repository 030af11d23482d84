"""Metrics: what is measured of a round; results/round.py records it."""
