"""Networks, as plain torch modules."""
