"""What is wrong with data, and what would stop or slow a run: `bridge-data check`; how fast data are, and where the
time goes: `plan --measure`.

    check_command   `check`: what to check, and what it prints
    lint            a data set or metadataset, shard by shard
    lint_checks     the kinds of faults, and what finds them
    checked_run     `check --run`: facts, sources and findings
    findings        what is found of a run: how severe, what to change
    run_checks      this machine, the settings, the order and the speed, looked at one by one; `shard_checks`, the data
    planned_run     a run with its machines, and the time of its steps
    source_draws    how often each source is drawn
    mixing          how well the order of a source mixes
    measured_speed  `plan --measure`
    bench           how fast the data of a run are
    profile         where its time goes, by stage and data set, by a `clock`
"""
