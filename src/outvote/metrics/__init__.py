"""Metrics: what is recorded of a round."""
