"""States of a run go on in a plan with other weights, more sources, or another micro-batch size."""
