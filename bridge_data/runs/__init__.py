"""Training runs as commands read them. No module knows a plug-in: what one records or measures comes by a seam.

saved_files   the states that a run has saved; the seam for records of its micro-batches
training_run  its settings, ranks and steps, from a YAML, a Python function, a folder or data
named_samples the sample that a user names by its key
run_plan      what it will see: steps, samples, tokens, epochs, loads; the seam for costs
"""
