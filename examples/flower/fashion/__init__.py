"""A Flower app: nodes train an image classifier, some are Byzantine, outvote aggregates."""
