"""`make bench`: the loaders of several libraries on the same data, in pairs of runs in turn, and a table of it."""
