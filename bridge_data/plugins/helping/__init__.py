"""Workers that wait load slow samples for others."""
