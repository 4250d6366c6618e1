"""`make bench`: the loaders of several libraries on the same data, run in turn, and a table of the results."""
