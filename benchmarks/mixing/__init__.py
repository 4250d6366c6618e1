"""How well an order mixes samples: orders of libraries are drawn, measured, and set side by side."""
