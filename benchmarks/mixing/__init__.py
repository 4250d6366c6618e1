"""Shuffle quality: draw the orders of several libraries, measure how well they mix, and compare."""
