"""Workers that run as Ray actors, also on other machines."""
