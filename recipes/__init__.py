"""Training runs as the users of each stack write them, and a demo. They run from a clone.

bridge      functions that return Megatron-Bridge's `ConfigContainer`, with our data
lightning   a model of transformers for LightningCLI, and the YAML of its trainer
megatron    a script for Megatron-core, and the model that it trains
demo        trains by that script, kills, resumes, and compares each sample

All read the same YAML: the section `data` in `configs/*.yaml`.
"""
