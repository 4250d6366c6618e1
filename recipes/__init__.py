"""Runs as one YAML file: model, data, tokenizer, image processor, task encoder, training, under Megatron or Lightning.

families         a recipe for each model family; `all.yaml` has the defaults of all
recipe           reads and merges families, the user's YAML and arguments, and makes the parts
option_values    values of settings as the types that their fields have
task_encoders    what a recipe's `encoder` may set, for each of our encoders
train            the command: `train_lightning`, or `train_megatron` with its loop in `trainer`
megatron_model   models of transformers for Megatron: `megatron_weights`, `packed_attention`, and `cpu_shim`
tiny_parts       small models, tokenizers and image processors, made here; `tiny_data` likewise
demo             trains, kills, resumes, and compares each sample: `demo_jobs`, `run_log`, `compare_runs`
"""
