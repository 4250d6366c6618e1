"""Training runs as commands read them. No module knows a plug-in: what one records or measures comes by a seam.

saved_files    the states that a run has saved; the seam for records of its micro-batches
training_run   its settings, ranks and steps, from a YAML, a Python function, a folder or data
run_sections   between two states: the samples of each micro-batch
named_samples  the sample that a user names by its key
occurrences    when a sample comes: the inverse of the order
run_order      the samples of a step, the steps of a sample, where two runs differ
state_contents a state as readable numbers
run_plan       what it will see: steps, samples, tokens, epochs, loads; the seam for costs
"""
