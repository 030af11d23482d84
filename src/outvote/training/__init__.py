"""Local training: the batches of every client in, one gradient per client out."""
