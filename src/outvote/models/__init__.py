"""Networks: plain torch modules, and the same networks for many sets of weights at once."""
