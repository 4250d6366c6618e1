"""What samples cost: the index of their costs, weights that count tokens, and packs planned from them."""
