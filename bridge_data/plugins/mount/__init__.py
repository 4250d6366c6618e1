"""A data set as a read-only file system."""
