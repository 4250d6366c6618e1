"""What is done with saved states: looked at, compared, written for other ranks, made to skip steps.

checkpoint_command `bridge-data checkpoint info`; those of other plug-ins are in its group, too
state_commands     `bridge-data checkpoint diff`, `redist` and `skip`
state_differences  in what two states differ
"""
