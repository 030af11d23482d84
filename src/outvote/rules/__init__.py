"""Robust aggregation rules: one file each, and the wrappers that combine them."""
