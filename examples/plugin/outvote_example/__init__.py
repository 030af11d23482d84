"""A rule, an attack, a model and a dataset for outvote, in a package of their own."""
