"""The server: how it applies the update of a round."""
