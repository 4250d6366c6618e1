"""Small tokenizers, image processors and models of known families, and small data for them."""
