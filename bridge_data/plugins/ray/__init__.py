"""Work on other machines by Ray: the workers of a loader as actors, and the tasks of what prepares data."""
