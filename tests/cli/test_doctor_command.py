import io
import json
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.conftest import Run
from tests.data.tars import write_shards
from tests.prepared import write_blend, write_dataset, write_texts


@pytest.fixture
def blend(tmp_path: Path) -> Path:
    write_texts(tmp_path / "odd", 100)
    write_texts(tmp_path / "even", 400)
    return write_blend(tmp_path / "blend.yaml", {"even": 3, "odd": 1})


def test_facts_sources_and_findings_and_whether_the_run_would_stop(run: Run, blend: Path) -> None:
    ranks = ("--num-workers", 0, "--world-size", 1, "--later-world-sizes", "3", "--steps", 250)
    result = run("doctor", blend, "--seconds", 0, *ranks)
    assert result.exit_code == 0, result.output
    facts, sources, *findings = result.stdout.split("\n\n")
    headings = [line[:12].strip() for line in facts.splitlines()]
    assert headings == ["data set", "run", "order", "machine", "decoders", "shards"]
    assert "run          1 rank, later 3, 0 workers each, micro-batches of 16, steps of 16 samples" in facts
    assert facts.endswith("10, 10 looked at")
    rows = [line.split() for line in sources.splitlines()]
    assert rows[1][:4] == ["even/train", "400", "75.00%", "7.50"]
    assert rows[2][:4] == ["odd/train", "100", "25.00%", "10.00"]
    assert findings[0].startswith("1. mixes  lanes-of-later-ranks")
    assert "   → set num_lanes=24 from the beginning" in findings[0]
    assert result.stdout.endswith(f"{len(findings) - 1} findings\n")
    (blend.parent / "odd" / "data-0001.tar").unlink()
    result = run("doctor", blend, "--seconds", 0)
    assert result.exit_code == 1 and "1. stops  missing-shard" in result.stdout
    assert result.stdout.rstrip().endswith("1 of which would stop the run")


def test_tars_that_nobody_has_prepared_are_checked_and_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    write_shards(tmp_path / "tars")
    encoder = ("--task-encoder", "tests.tools.bench.encoders:Cooked")
    result = run("doctor", tmp_path / "tars", *encoder, "--num-workers", 0, "--seconds", 0.05, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["figures"]["samples_per_s"] > 0
    assert "unprepared" in [finding["code"] for finding in document["findings"] if finding["level"] == "note"]


def test_json_has_the_settings_of_a_config_and_of_options(run: Run, blend: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("data: {micro_batch_size: 2, global_batch_size: 8}\ntraining: {train_steps: 100}\n")
    for given in ([], ["--config", config]):
        refused = run("doctor", *given)
        assert refused.exit_code != 0 and "DATASET" in refused.stderr
    settings = ["--config", config, "--num-workers", 0, "--batch-size", 4, "--seconds", 0.05, "--json"]
    result = run("doctor", blend, *settings)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    planned = document["run"]
    assert (planned["micro_batch_size"], planned["global_batch_size"], planned["steps"]) == (4, 8, 100)
    assert document["figures"]["samples_per_s"] > 0 and not document["stops"]
    assert [source["draws"] for source in document["sources"]] == [600, 200]


def test_of_many_findings_of_a_kind_some_are_shown(run: Run, tmp_path: Path) -> None:
    names = [f"set{number}" for number in range(7)]
    for name in names:
        write_texts(tmp_path / name, 2)
    blend = write_blend(tmp_path / "blend.yaml", dict.fromkeys(names, 1))
    result = run("doctor", blend, "--seconds", 0, "--num-workers", 0, "--steps", 1000, "--num-lanes", 1)
    assert result.stdout.count("many-epochs") == 6
    assert result.stdout.endswith("… and 2 more of many-epochs; --json shows all\n\n7 findings\n")


def test_a_recipe_is_examined_with_its_own_encoder_and_defaults(run: Run, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 30)).save(file, "JPEG")
    captioned = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": {"image": "jpg", "caption": "txt"},
    }
    photos = ({"__key__": f"{n}", "jpg": file.getvalue(), "txt": f"{n}"} for n in range(40))
    data = write_dataset(tmp_path / "photos", photos, definition=captioned)
    config = tmp_path / "recipe.yaml"
    config.write_text(f"recipe: llava\ntiny: true\ndata: {{path: {data}}}\n")
    told = run("doctor", config, "--seconds", 0)
    assert told.exit_code == 1 and "--config" in told.stdout
    document = json.loads(run("doctor", "--config", config, "--seconds", 0.05, "--json").stdout)
    assert document["path"] == str(data)
    assert (document["run"]["micro_batch_size"], document["run"]["packing_buffer_size"]) == (1, 8)
    assert document["figures"]["samples_per_s"] > 0 and not document["stops"]
    config.write_text("recipe: llava\ntokenizer: {pretrained: /nowhere}\ndata: {micro_batch_size: 3}\n")
    result = run("doctor", data, "--config", config, "--seconds", 0)
    assert "Of the recipe only the numbers in the file are known" in result.stderr and "of 3," in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--later-world-sizes", "8,many"], "--later-world-sizes 8,many: expected numbers, such as 8 or 8,16,24"),
        (["--seconds", -1], "--seconds -1: expected 0 or more"),
        (["--num-workers", -1], "--num-workers -1: expected an integer of at least 0"),
        (["--plot", "plan.png"], "--plot: how long is the run?"),
        (["--config", "nothing.yaml"], "nothing.yaml: cannot be read"),
    ],
)
def test_options_that_are_wrong(run: Run, tmp_path: Path, options: list[object], message: str) -> None:
    result = run("doctor", write_texts(tmp_path / "texts", 4), *options)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
