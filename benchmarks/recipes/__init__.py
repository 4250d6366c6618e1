"""`make bench-recipes`: what jobs compute from files to `pixel_values` and packed tokens, by several sides, in turn."""
