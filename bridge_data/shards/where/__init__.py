"""`where`: the samples of a data set that a predicate over their columns chooses, evaluated once."""
