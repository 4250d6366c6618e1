"""Recipes: full configs of runs, the program that trains one, and the demo."""
