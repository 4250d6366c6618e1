"""What would stop or slow a run, each finding with the change and its gain: `bridge-data check --run`.

checked_run  the command: facts, sources and findings
run_checks   this machine, the data, the order and the speed, looked at one by one
mixing       how well the order of a source mixes
"""
