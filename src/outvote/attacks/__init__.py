"""Attacks: one file each, what lying clients send."""
