"""`bridge-data plan`: of data, and of a YAML of LightningCLI; and how fast the data are."""

import json
from pathlib import Path

from tests.cli.runner import run_command
from tests.prepared import write_blend, write_texts
from tests.runs.plan_parts import measure

WORDS = "task_encoder=tests.runs.plan_parts.PackedWords"


def write_data(folder: Path) -> Path:
    """A blend of 170 and 90 texts, measured."""
    write_texts(folder / "a", 170)
    write_texts(folder / "b", 90)
    blend = write_blend(folder / "blend.yaml", {"a": 3, "b": 1})
    measure(blend)
    return blend


def test_a_plan_of_data_is_a_table_or_json(tmp_path: Path) -> None:
    blend = write_data(tmp_path)
    options = (blend, WORDS, "packing=planned", "micro_batch_size=2", "--world-size", 2, "--run-steps", 40)
    shown = run_command("plan", *options, "--exact-steps", 30)
    assert shown.exit_code == 0, shown.output
    for told in ("first 30 steps", "the run, about", "tokens", "words", "too long", "b/train", "full", "of 2 ranks"):
        assert told in shown.output
    found = json.loads(run_command("plan", *options, "balance=attention", "--json").stdout)
    assert (found["version"], found["is_exact"], found["load"], found["is_assigned"]) == (1, True, "attention", True)
    assert found["run"]["units"] == 160
    assert found["assigned"]["mean"] < found["in_turn"]["mean"]
    assert found["run"]["epochs"] == [
        drawn / size for drawn, size in zip(found["run"]["drawn"], (170, 90), strict=True)
    ]
    page = tmp_path / "plan.html"
    assert run_command("plan", *options, "--exact-steps", 30, "--html", page).stdout.startswith(shown.stdout[:40])
    html = page.read_text()
    assert "src=" not in html and html.count("<svg") == 6 and "<td>40</td>" in html  # of epochs, and of steps
    assert "cannot be written" in run_command("plan", *options, "--html", tmp_path / "none" / "plan.html").stderr
    online = run_command("plan", blend, WORDS, "packing_buffer_size=20", "--run-steps", 4)
    assert online.exit_code == 0 and "packing" in online.stderr
    unmeasured = run_command("plan", blend, "--epochs", 2, "--epochs-of", "b/train")
    assert unmeasured.exit_code == 0, unmeasured.output
    refused = run_command("plan", blend, WORDS, "packing_buffer_size=20", "--tokens", 400)
    assert refused.exit_code == 1 and "steps" in refused.stderr


def test_a_yaml_of_lightning_says_the_length_and_the_sizes(tmp_path: Path) -> None:
    blend = write_data(tmp_path)
    config = tmp_path / "run.yaml"
    data = {"path": str(blend), "micro_batch_size": 2}
    config.write_text(json.dumps({"data": data, "trainer": {"max_steps": 10, "accumulate_grad_batches": 3}}))
    found = json.loads(run_command("plan", config, "--json").stdout)
    assert (found["run"]["steps"], found["run"]["units"]) == (10, 60)


def test_of_data_that_nobody_packs_no_costs_are_asked_for(tmp_path: Path) -> None:
    shown = run_command("plan", write_texts(tmp_path / "texts", 90))
    assert shown.exit_code == 0 and "--costs" not in shown.stderr and "hooks skip no sample" in shown.stderr
    refused = run_command("plan", tmp_path / "texts", "--tokens", 400)
    assert refused.exit_code == 1 and "--costs" in refused.stderr


def test_the_rate_is_measured_and_profiled(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", 90)
    options = (texts, "num_workers=0", "--run-steps", 4, "--measure", 0.05)
    shown = run_command("plan", *options, "--profile")
    assert shown.exit_code == 0, shown.output
    assert "speed" in shown.stdout and "all work" in shown.stdout
    found = json.loads(run_command("plan", *options, "--json").stdout)
    assert found["figures"]["samples_per_s"] > 0 and "profile" not in found
    step = ("global_batch_size=10", "--step-seconds", 0.5)  # it was half a second for each of the ten micro-batches
    assert json.loads(run_command("plan", *options, *step, "--json").stdout)["figures"]["batches_per_s"] > 2.5
    assert "--profile: give --measure" in run_command("plan", texts, "--profile").stderr
