"""Experiments: from a file of settings to results in folders, resumed where they stopped."""
