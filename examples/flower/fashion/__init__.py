"""A Flower app: nodes learn to tell clothes apart, some of them lie, and outvote judges them."""
