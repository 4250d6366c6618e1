"""Where the time of a run goes, by stage and data set."""
