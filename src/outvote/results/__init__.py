"""Results: one folder per run that survives whatever happens to the program; read without torch."""
