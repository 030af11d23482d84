"""The server: what it does with the update of a round."""
