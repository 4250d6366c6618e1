import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFile

from bridge_data import WorkerConfig, get_loader, get_train_dataset
from bridge_data.data.records import stored_records
from bridge_data.errors import DatasetError
from bridge_data.plan.opening import load_plan
from bridge_data.plugins.planned.costs import CostTable, costs_folder, open_costs
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.task import TaskEncoder
from tests.cli.conftest import Run
from tests.plugins.planned.measure_encoders import Words, expected, module, qwen
from tests.prepared import CRUDE, write_dataset, write_texts
from tests.ranks import run_job

ENCODERS = "tests.plugins.planned.measure_encoders"
QUIET = ("--no-progress", "--num-workers", 1)
CHAT = "tests.plugins.planned.measure_encoders:qwen"
WORDS = "tests.plugins.planned.measure_encoders:Words"


def table_of(path: Path, encoder: TaskEncoder[Any, Any, Any, Any], part: str = "train", **options: Any) -> CostTable:
    (source,) = load_plan(path, split_part=part, **options).sources
    return open_costs(source.records, encoder.costs_key(source))


def check_words(table: CostTable, numbers: Sequence[int]) -> None:
    """The samples are the texts `numbers`."""
    assert table.names == ("tokens", "second")
    positions, _, costs = table.parts(np.arange(len(numbers)))
    wanted = [(at, part) for at, number in enumerate(numbers) for part in expected(number)]
    assert [*zip(positions.tolist(), costs.tolist(), strict=True)] == wanted
    assert table.total("tokens") == sum(part[0] for _, part in wanted)


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def chat(number: int, images: int) -> dict[str, Any]:
    rng = random.Random(number)
    words = " ".join(rng.choices(["what", "is", "in", "this", "picture", "a", "boat"], k=rng.randrange(1, 60)))
    turns = [{"role": "user", "content": "<image>" * images + words}, {"role": "assistant", "content": words[::-1]}]
    sample: dict[str, Any] = {"__key__": f"{number:04d}", "json": {"messages": turns}}
    for image in range(images):
        content = io.BytesIO()
        size = rng.randrange(20, 90), rng.randrange(20, 90)
        Image.new("RGB", size, (number, 0, 0)).save(content, "PNG")
        sample[f"{image}.png"] = content.getvalue()
    return sample


def test_costs_of_chats_are_what_the_packer_counts_and_no_pixel_is_decoded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = {"sample_type": CRUDE}
    folder = write_dataset(
        tmp_path / "chats", [chat(number, number % 3) for number in range(60)], per_shard=13, definition=definition
    )
    decoded = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: decoded.append(1) or load(image))
    result = run("prepare", folder, "--costs", CHAT, *QUIET)
    assert result.exit_code == 0, result.output
    assert not decoded
    table = table_of(folder, qwen())
    everything = np.arange(60)
    tokens = dict(zip([f"{number:04d}" for number in range(60)], table.take(everything, "tokens"), strict=True))
    assert table.take(everything, "images").tolist() == [number % 3 for number in range(60)]
    assert (table.take(everything, "image_tokens") > 0).tolist() == [number % 3 > 0 for number in range(60)]
    assert table.total("frames") == table.total("video_tokens") == 0

    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        folder,
        worker_config=workers,
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        packing_buffer_size=10,
        task_encoder=qwen(),
        repeat=False,
    )
    packed = {}
    for batch in get_loader(dataset):
        keys = [key.rpartition("/")[2] for key in batch.__key__[0].split(",")]
        packed |= zip(keys, batch.cu_seqlens[0].diff()[: len(keys)].tolist(), strict=True)
    assert packed == tokens


def test_a_table_of_results_and_the_reasons_of_skips(run: Run, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 40)
    result = run("prepare", folder, "--costs", WORDS, *QUIET)
    assert result.exit_code == 0, result.output
    check_words(table_of(folder, Words()), range(40))
    lines = result.stdout.splitlines()
    assert any(line.split()[:2] == ["tokens", "762"] for line in lines), result.stdout
    assert "skipped 5 samples, the first data-0000.tar/000000: preencode_sample: sample … is #" in lines
    assert next(line for line in lines if line.startswith("tokens ")).split()[-1] == "39"
    again = run("prepare", folder, "--costs", WORDS, *QUIET).stdout
    assert "samples      40, 40 of them before" in again and "measured 0 samples" in again


@pytest.mark.processes
def test_the_files_are_the_same_however_the_work_is_divided(run: Run, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 500, per_shard=70, ratio="3,1,0")
    costs = costs_folder(stored_records(load_plan(folder).sources[0].records))
    assert isinstance(costs, Path)
    written = []
    for options in (["--num-workers", 1], ["--num-workers", 2], None):
        if options is None:
            for index in (1, 0, 2):
                share = ["--task", f"{index}/3"]
                assert run("prepare", folder, "--costs", WORDS, *QUIET, *share).exit_code == 0
                assert not files(costs)
        result = run("prepare", folder, "--costs", WORDS, "--no-progress", *(options or ()))
        assert result.exit_code == 0, result.output
        written.append(files(costs))
        for file in costs.iterdir():
            file.unlink()
    assert len(written[0]) == 2 and written[0] == written[1] == written[2]


@pytest.mark.processes
def test_a_killed_run_resumes_and_grown_data_keep_what_was_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "texts", 300)
    with monkeypatch.context() as stopped:
        stopped.setenv("BRIDGE_DATA_TEST_STOP", "250")
        status, printed = run_job("bridge_data.cli", "prepare", str(folder), "--costs", WORDS, *map(str, QUIET))
    assert status == 9, printed
    with pytest.raises(Exception, match="bridge-data prepare"):
        table_of(folder, Words())
    left = {file: file.stat().st_mtime_ns for file in (folder / ".nv-meta/costs").glob(".measuring-*/*.costs")}
    assert len(left) == 3
    result = run("prepare", folder, "--costs", WORDS, *QUIET)
    assert result.exit_code == 0, result.output
    check_words(table_of(folder, Words()), range(300))
    write_texts(folder, 420)
    with pytest.raises(DatasetError, match="has changed"):
        table_of(folder, Words())
    assert "samples      420, 300 of them before" in run("prepare", folder, "--costs", WORDS, *QUIET).stdout
    check_words(table_of(folder, Words()), range(420))
    grown = files(folder / ".nv-meta/costs")
    assert len(grown) == 1
    assert run("prepare", folder, "--costs", WORDS, "--rescan", *QUIET).exit_code == 0
    assert files(folder / ".nv-meta/costs") == grown


def test_lines_and_tables_and_all_data_of_a_metadataset(run: Run, tmp_path: Path) -> None:
    lines, table = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    lines.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(30)))
    prepare_jsonl(lines)
    pq.write_table(pa.table({"text": [str(number) for number in range(50)]}), table, row_group_size=20)
    folder = write_texts(tmp_path / "texts", 40)
    blend = tmp_path / "blend.yaml"
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - path: texts\n        subset: {range: [10, 30]}\n"
        "      - path: b.parquet\n        sample_type: {__module__: bridge_data, __class__: TextSample}\n"
        "        field_map: {text: text}\n"
    )
    result = run("prepare", blend, "--costs", WORDS, *QUIET)
    assert result.exit_code == 0, result.output
    first, second = load_plan(blend).sources
    check_words(open_costs(first.records, Words().costs_key(first)), range(10, 30))
    check_words(open_costs(second.records, Words().costs_key(second)), range(50))
    assert (tmp_path / "b.parquet.costs").is_dir()
    assert load_plan(tmp_path / "b.parquet").num_samples == 50
    assert folder.is_dir()


def test_the_encoder_of_a_runs_config_has_the_key_of_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "texts", 40)
    monkeypatch.setenv("BRIDGE_DATA_TEST_PATH", str(folder))
    result = run("prepare", folder, "--costs", f"{ENCODERS}:module", *QUIET)
    assert result.exit_code == 0, result.output
    dataset = module().datasets_provider(WorkerConfig(rank=0, world_size=1, num_workers=0), "train")
    (source,) = dataset.plan.sources
    table = open_costs(source.records, dataset.task_encoder.costs_key(source))
    check_words(table, range(0, 40, 2))


def test_read_only_data_have_their_costs_elsewhere(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = write_texts(tmp_path / "texts", 40), tmp_path / "costs"
    monkeypatch.setenv("BRIDGE_DATA_COSTS", str(out))
    assert run("prepare", folder, "--costs", WORDS, *QUIET).exit_code == 0
    assert not (folder / ".nv-meta/costs").exists()
    check_words(table_of(folder, Words()), range(40))


def test_too_many_failures_and_missing_settings_are_errors(run: Run, tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    for options, told in (
        (["--costs", f"{ENCODERS}:Broken"], "101 times in a row"),
        (["--costs", "nothing"], "expected package.module:Name"),
        (["--costs", WORDS, "--task", "1"], "--task 1: expected I/N"),
        (["--costs", WORDS, "--digest"], "--digest is for data that are prepared now"),
    ):
        result = run("prepare", folder, *options, *QUIET)
        assert result.exit_code == 1 and told in result.stderr, result.output
