"""Small real inputs for training jobs, and how to run one: `recipes.train` in processes of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from recipes.demo_data import DemoDataConfig, make_demo_data
from recipes.demo_tokenizer import demo_texts, train_tokenizer
from tests import ranks

ROOT = Path(__file__).parents[3]
NUM_STEPS = 8
SAVE_INTERVAL = 3

DIES_WHILE_SAVING = """
import sys
import psutil
from recipes.train import main
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
    sys.exit(main())
"""
"""The job, killed once the weights of its second checkpoint are written and the rest is not; with it the helpers of
`dist_checkpointing`, which would outlive it."""


def make_inputs(folder: Path) -> Path:
    """Data and tokenizer for a job, small."""
    make_demo_data(folder / "data", DemoDataConfig(num_captions=60, num_questions=40, samples_per_shard=10))
    train_tokenizer(demo_texts(folder / "data"), folder / "tokenizer", 384)
    return folder


def arguments(inputs: Path, run: Path, *overrides: str) -> list[str]:
    """The arguments of `recipes.train` for 8 steps, saved after 3, 6 and 8; logs and checkpoints in `run`."""
    return [
        f"--config={ROOT / 'configs' / 'demo.yaml'}",
        f"log_dir={run}",
        f"tokenizer.pretrained={inputs / 'tokenizer'}",
        f"data.path={inputs / 'data' / 'blend.yaml'}",
        "data.global_batch_size=4",
        "loader.num_workers=0",
        f"training.train_steps={NUM_STEPS}",
        f"training.save_interval={SAVE_INTERVAL}",
        f"training.checkpoint_dir={run / 'checkpoints'}",
        *overrides,
    ]


def run_job(command: list[str], run: Path, *, num_ranks: int | None = None) -> int:
    """The exit status of `command` on so many ranks; what it prints goes to `run/output.log`."""
    run.mkdir(parents=True, exist_ok=True)
    status, output = ranks.run_job(*command, num_ranks=num_ranks)
    with (run / "output.log").open("a") as file:
        file.write(output)
    return status


DRIVER = """
import json, sys
from pathlib import Path
from recipes.demo_jobs import run_job
run_job("recipes.train", sys.argv[3:], folder=Path(sys.argv[1]), on_step=lambda line: None, **json.loads(sys.argv[2]))
"""
"""A process of its own, as what it starts must not become children of the tests."""


def launch(run: Path, arguments: list[str], **options: object) -> None:
    """Train by the launcher of the demo, which may kill the job (see `recipes.demo_jobs.run_job`)."""
    command = [sys.executable, "-c", DRIVER, str(run), json.dumps(options), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr


def output_of(run: Path) -> str:
    """What a run has printed."""
    return (run / "output.log").read_text()


def evaluations(printed: str) -> dict[tuple[int, str], float]:
    """The validation losses that a run has printed, by the steps done and the name of the set."""
    lines = re.findall(r"^after (\d+) steps: validation loss of (.+) ([\d.]+)$", printed, re.MULTILINE)
    return {(int(step), name): float(loss) for step, name, loss in lines}
