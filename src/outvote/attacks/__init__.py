"""Attacks: what Byzantine clients send."""
