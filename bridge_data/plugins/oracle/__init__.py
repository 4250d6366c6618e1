"""Which samples come in which step of a run: `bridge-data order`, and pages of `bridge-data view`.

run_order      the samples of a step, the steps of a sample, where two runs differ
run_sections   between two saved states: the samples of each micro-batch
occurrences    when a sample comes: the inverse of the order
order_command  `order`
"""
