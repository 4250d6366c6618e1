"""The Lightning recipe on small data, with a small model of transformers: killed after a checkpoint, and resumed."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ranks import ROOT, run_job
from tests.tiny_models.data import write_conversations
from tests.tiny_models.parts import PATCH, tiny_image_processor, tiny_model, tiny_tokenizer

NUM_STEPS, SAVE_INTERVAL, KILLED_AFTER = 6, 2, 5


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and a checkpoint of LLaVA in small."""
    folder = tmp_path_factory.mktemp("inputs")
    write_conversations(folder / "conversations")
    tokenizer = tiny_tokenizer("llava")
    for part in (tokenizer, tiny_image_processor("llava"), tiny_model("llava", tokenizer)):
        part.save_pretrained(folder / "model")
    return folder


def fit(inputs: Path, run: Path, num_ranks: int, *, killed_after: int | None = None) -> None:
    """Train in the folder `run`."""
    saving = yaml.safe_load((ROOT / "recipes/lightning/trainer.yaml").read_text())["trainer"]["callbacks"][0]
    saving["init_args"]["every_n_train_steps"] = SAVE_INTERVAL
    noting = {"class_path": "tests.recipes.key_log.KeyLog"}
    noting["init_args"] = {"folder": str(run / "keys"), "killed_after": killed_after}  # type: ignore[assignment]
    trainer = {
        "max_steps": NUM_STEPS,
        "accelerator": "cpu",
        "devices": num_ranks,
        "strategy": "auto" if num_ranks == 1 else "ddp_find_unused_parameters_true",
        "accumulate_grad_batches": 1,
        "val_check_interval": 4,
        "limit_val_batches": 1,
        "log_every_n_steps": 1,
        "callbacks": [saving, noting],
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    run.mkdir(exist_ok=True)
    (run / "small.yaml").write_text(
        yaml.safe_dump(
            {"trainer": trainer, "model": {"optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-2}}}}
        )
    )
    configs = [ROOT / "recipes/lightning/trainer.yaml", ROOT / "configs/llava.yaml", run / "small.yaml"]
    settings = {
        "model.pretrained": inputs / "model",
        "model.dtype": "float32",
        "data.path": inputs / "conversations",
        "data.tokenizer": inputs / "model",
        "data.image_processor": inputs / "model",
        "data.seq_length": 512,
        "data.task_encoder.init_args.family.init_args.patch_size": PATCH,
        "data.global_batch_size": num_ranks,
        "data.packing_buffer_size": 8,
        "data.num_workers": 0,
        "data.num_lanes": 2,
        "data.pin_memory": "false",
    }
    arguments = [text for config in configs for text in ("--config", str(config))]
    arguments += [
        f"--{name}={json.dumps(value) if isinstance(value, bool) else value}" for name, value in settings.items()
    ]
    status, printed = run_job(
        "recipes.lightning.train_hf", "fit", *arguments, num_ranks=num_ranks, cwd=run, timeout_s=250
    )
    assert status == (0 if killed_after is None else 256 - 9), printed
    return status


def steps(run: Path) -> dict[str, list[dict[str, Any]]]:
    """What each rank has noted."""
    return {file.name: [*map(json.loads, file.read_text().splitlines())] for file in sorted((run / "keys").iterdir())}


@pytest.mark.processes
@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_after_a_checkpoint_a_run_goes_on_at_the_right_sample_and_keeps_what_was_logged(
    inputs: Path, tmp_path: Path, num_ranks: int
) -> None:
    fit(inputs, tmp_path / "whole", num_ranks)
    fit(inputs, tmp_path / "run", num_ranks, killed_after=KILLED_AFTER)
    fit(inputs, tmp_path / "run", num_ranks)
    whole, noted = steps(tmp_path / "whole"), steps(tmp_path / "run")
    assert len(whole) == num_ranks and whole.keys() == noted.keys()
    for rank, lines in whole.items():
        assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
        assert len({json.dumps(line["keys"]) for line in lines}) == NUM_STEPS
        assert noted[rank] == lines[:KILLED_AFTER] + lines[KILLED_AFTER - 1 :]
    logged = [
        {int(row["step"]) for row in csv.DictReader((tmp_path / "run/runs/hf" / version / "metrics.csv").open())}
        for version in ("version_0", "version_1")
    ]
    assert min(logged[0]) == 0 and max(logged[1]) == NUM_STEPS - 1
    assert set().union(*logged) == set(range(NUM_STEPS))
