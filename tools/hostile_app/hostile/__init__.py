"""A Flower app whose nodes train a linear classifier; hostile ones send everything wrong."""
