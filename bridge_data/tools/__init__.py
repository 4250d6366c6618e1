"""Tools outside the training path: the command line and its commands."""
