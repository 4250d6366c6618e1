"""What a run read: sums of each lane in its state, and the keys of each step in files."""
