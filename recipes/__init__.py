"""Runs as one YAML file: model, data, tokenizer, image processor, task encoder, training, under Megatron or Lightning.

    families         a recipe for each model family; `all.yaml` has what they begin with
    recipe           reads and merges families, the user's YAML and arguments, and makes the parts
    option_values    values of settings as the types that their fields have
    task_encoders    what a recipe's `encoder` may set, for each of our encoders
    train            the command: `train_lightning`, or `train_megatron` with its loop in `trainer`
    megatron_model   models of transformers for Megatron: `megatron_weights`, `packed_attention`, and `cpu_shim`
    tiny_parts       small models, tokenizers and image processors, made here; `tiny_data` likewise
    demo             trains, kills, resumes, and compares each sample: `demo_jobs`, `run_log`, `compare_runs`

To change: a default of a recipe, `families/all.yaml` or the family, else the dataclass that has it (`trainer.config`,
`recipe`, the arguments in `task_encoders`); how YAML, family and arguments are merged, `recipe.load_recipe`, and what
is said of an unknown key, `recipe._changed`; which families Megatron trains, `recipe.FAMILIES`; the order of a step,
`fit` of `trainer.loop` under Megatron, `train_lightning` under Lightning; when a checkpoint is saved, there, too, in
`fit` and `_trainer`; how, `trainer.checkpoint`; the log, `run_log`; the demo's run, `configs/demo.yaml`.
"""
