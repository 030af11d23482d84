"""The engine: rounds of many federations at once. It knows no files, specs or command line."""
