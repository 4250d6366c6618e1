"""What is done to saved states beside looking at them: compared, written for other ranks, made to skip steps.

state_commands     `bridge-data checkpoint diff`, `redist` and `skip`
state_differences  in what two states differ
"""
