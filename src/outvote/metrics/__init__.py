"""Metrics: what is told of a round."""
