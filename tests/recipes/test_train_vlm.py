"""The Megatron script on real data: killed and resumed, and resumed on other topologies."""

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from bridge_data import ConfigError
from bridge_data.configs import DataConfig
from recipes.demo.__main__ import MODEL
from recipes.demo.compare import Comparison, compare, read_run
from recipes.megatron.vlm import LLAVA_7B, Sizes
from tests.cli.runner import run_command
from tests.ranks import run_job
from tests.recipes.llava_tokenizer import IMAGE_ID, PAD_ID, write_tokenizer
from tests.recipes.vlm_job import FORKS, NUM_STEPS, ROOT, arguments, make_inputs, train

DIES_WHILE_SAVING = f"""
{FORKS}
import sys
import psutil
from recipes.demo.on_cpu import main
if __name__ == "__main__":
    from megatron.core import dist_checkpointing
    save, done = dist_checkpointing.save, []

    def save_or_die(state, folder, *args, **kwargs):
        save(state, folder, *args, **kwargs)
        done.append(folder)
        if len(done) == 2:
            trainer = psutil.Process()
            for process in [*trainer.children(recursive=True), trainer]:
                process.kill()

    dist_checkpointing.save = save_or_die
    main()
"""
"""The job, killed once the weights of its second checkpoint are written and the rest is not; with it the helpers of
`dist_checkpointing`, which would outlive it."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def printed(inputs: Path) -> str:
    """What a run has printed that nothing happened to, in the folder `whole`."""
    return train(inputs, inputs / "whole")


@pytest.fixture(scope="module")
def whole(inputs: Path, printed: str) -> Path:
    return inputs / "whole"


def compare_with(whole: Path, run: Path, first: int) -> Comparison:
    return compare("run", read_run(run), read_run(whole), range(first, NUM_STEPS + 1))


def continue_from(whole: Path, run: Path, step: int) -> None:
    """Give a new run the checkpoint of `whole` after `step` steps."""
    shutil.copytree(whole / f"iter_{step:07d}", run / f"iter_{step:07d}")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_the_script_can_be_read_at_one_go() -> None:
    assert len((ROOT / "recipes/megatron/train_vlm.py").read_text().splitlines()) < 120


@pytest.mark.parametrize(
    ("sizes", "options", "says"),
    [
        ({}, {"micro_batch_size": 2}, "micro_batch_size=2: this model takes one pack"),
        ({"vocabulary": 128}, {}, "--model.vocabulary 128: the tokenizer has 384 tokens"),
        ({"image_token": 0}, {}, "--model.image_token 0: <image> is token 1"),
        ({"patch": 8}, {}, "--model.image 16 --model.patch 8: an image has 4 patches, and 16 tokens in the data"),
        ({}, {}, None),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(
    sizes: dict[str, int], options: dict[str, int], says: str | None, inputs: Path
) -> None:
    paths = {name: str(inputs / name) for name in ("tokenizer", "image_processor")}
    config = DataConfig.read(ROOT / "configs/demo.yaml", [f"path={inputs / 'data/blend.yaml'}"])
    data, model = config.with_options(num_workers=0, **paths, **options).build(), Sizes(**(MODEL | sizes))
    with contextlib.nullcontext() if says is None else pytest.raises(ConfigError, match=says):
        model.check(data)


def test_the_model_fits_the_data_of_llava_with_the_sizes_of_its_own_tokenizer(inputs: Path, tmp_path: Path) -> None:
    crop = {"height": 336, "width": 336}
    CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size=crop).save_pretrained(tmp_path / "image_processor")
    paths = {"tokenizer": str(write_tokenizer(tmp_path / "tokenizer"))}
    paths |= {"image_processor": str(tmp_path / "image_processor")}
    config = DataConfig.read(ROOT / "configs/llava.yaml", [f"path={inputs / 'data/blend.yaml'}"])
    data = config.with_options(num_workers=0, **paths).build()
    encoder: Any = data.task_encoder
    assert (len(encoder.tokenizer), encoder.tokenizer.pad_token_id) == (32_002, PAD_ID)
    LLAVA_7B.check(data)
    with pytest.raises(ConfigError, match=r"--model.vocabulary 32000: the tokenizer has 32002 tokens"):
        dataclasses.replace(LLAVA_7B, vocabulary=32_000).check(data)
    batch = next(data.train_dataloader())
    num_images, *shape = batch.media["pixel_values"].shape
    assert (shape, data.seq_length, len(batch.tokens)) == ([3, 336, 336], 4096, 1)
    assert int((batch.tokens == IMAGE_ID).sum()) == num_images * 576 > 576, "as many as the tower makes patches"
    assert set(batch.tokens[batch.tokens > IMAGE_ID].tolist()) <= {PAD_ID}
    assert int(batch.labels.max()) < IMAGE_ID and batch.loss_mask.sum() > 0


@pytest.mark.processes
def test_a_run_leaves_checkpoints_as_megatron_names_them_and_what_happened_in_it(whole: Path, printed: str) -> None:
    for name in ("metadata.json", "__0_0.distcp", "train_dataloader_dprank000.pt"):
        assert (whole / "iter_0000003" / name).is_file()
    assert (whole / "latest_checkpointed_iteration.txt").read_text() == str(NUM_STEPS)
    batches = read_run(whole)
    assert list(batches) == list(range(1, NUM_STEPS + 1))
    assert batches[NUM_STEPS].loss < batches[1].loss - 0.1
    said = re.findall(r"^step (\d+): loss ([\d.]+), validation loss ([\d.]+)$", printed, re.M)
    assert [(int(step), float(loss)) for step, loss, _ in said] == [
        (step, round(batches[step].loss, 4)) for step in (3, 6, 8)
    ]
    assert len({validated for _, _, validated in said}) == 3


@pytest.mark.processes
def test_the_folder_of_a_run_is_all_that_commands_need(whole: Path) -> None:
    told = run_command("order", whole, "--step", 4, "--json")  # the script counts from 1
    assert told.exit_code == 0, told.output
    packs = [pack for keys in read_run(whole)[5].keys for pack in keys]
    assert [one["key"] for one in json.loads(told.stdout)["samples"]] == ",".join(packs).split(",")


@pytest.mark.processes
def test_killed_while_saving_a_run_goes_on_from_the_checkpoint_before_bit_by_bit(inputs: Path, whole: Path) -> None:
    run = inputs / "killed"
    status, output = run_job("-c", DIES_WHILE_SAVING, *arguments(inputs, run), num_ranks=1, timeout_s=250)
    assert status == 256 - 9, output
    assert (run / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert (run / "iter_0000006").is_dir()
    assert compare("killed", read_run(run), read_run(whole), range(1, 7)).complaints == ()

    train(inputs, run)
    log = run / "steps_dprank000.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    expected = [*((step, 0) for step in range(1, 7)), *((step, 1) for step in range(4, NUM_STEPS + 1))]
    assert [(line["step"], line["start"]) for line in lines] == expected, "its log goes on"
    result = compare_with(whole, run, first=1)
    assert (result.complaints, result.losses) == ((), "bit-equal")
    assert (run / "latest_checkpointed_iteration.txt").read_text() == str(NUM_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"tensor_parallel": 2}], ids=["data", "tensor"])
def test_one_rank_s_checkpoint_goes_on_under_any_parallelism(
    inputs: Path, whole: Path, tmp_path: Path, settings: dict[str, int]
) -> None:
    continue_from(whole, tmp_path, 3)
    train(inputs, tmp_path, num_ranks=2, **settings)
    batches, expected = read_run(tmp_path), read_run(whole)
    assert list(batches) == list(range(4, NUM_STEPS + 1))
    for step, batch in batches.items():
        assert batch.keys == expected[step].keys
        assert batch.loss == pytest.approx(expected[step].loss, abs=1e-4)


@pytest.mark.slow
def test_weights_in_bfloat16_resume_bit_by_bit(inputs: Path, tmp_path: Path) -> None:
    train(inputs, tmp_path / "bf16", bf16="true")
    continue_from(tmp_path / "bf16", tmp_path / "resumed", 3)
    train(inputs, tmp_path / "resumed", bf16="true")
    assert compare_with(tmp_path / "bf16", tmp_path / "resumed", first=4).complaints == ()
