"""`make demo`: a job trains on real photos, is killed, resumes, and is proven to be the uninterrupted run.

    data ─▶ no-kill ─▶ killed ─▶ the checkpoint that it left, resumed ─▶ table
                                 on 2 ranks, on 1 rank, with other workers

The job is `recipes.megatron.train_vlm`, with a small model and without a GPU. Each rank logs the keys of the batch that
made the loss; `recipes.demo.compare`, a separate program, compares the logs. All output goes to `demo_run/`. The
environment variable BRIDGE_DATA_DEMO_SKIP_ONE=1 skips one sample of the resumed run, to show that the table would
notice.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridge_data.storage.locations import COPY_IT, output_on_disk
from recipes.demo.compare import read_run
from recipes.demo.jobs import JobFailed, end_descendants, run_job
from recipes.demo.photos import DemoDataConfig, make_demo_data

ROOT = Path(__file__).parents[2]
DATA = DemoDataConfig()
VOCABULARY, IMAGE, PATCH = 384, 16, 4
"""Tokens of the demo's tokenizer; pixels of its images and of their patches."""
MODEL = {"vocabulary": VOCABULARY, "image_token": 1, "layers": [2, 1], "hidden": [32, 32], "heads": [2, 2]}
MODEL |= {"image": IMAGE, "patch": PATCH}
LATEST = "latest_checkpointed_iteration.txt"
SKIP_ONE = "BRIDGE_DATA_DEMO_SKIP_ONE"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One launch of the job."""

    name: str
    num_ranks: int = 2
    num_workers: int = 2
    resumes: bool = True
    kill_after_step: int | None = None


RESUMES = (Run(name="resumed"), Run(name="on-1-rank", num_ranks=1), Run(name="other-workers", num_workers=1))


class Demo:
    """The runs of one demo in one folder."""

    def __init__(self, folder: Path, num_steps: int, resumes: Sequence[str], *, skips_one: bool = False) -> None:
        self.folder = folder
        self.num_steps = num_steps
        self.resumes = resumes
        self.save_interval = num_steps // 4
        self.kill_after_step = 2 * self.save_interval + (self.save_interval + 1) // 2
        self.runs = folder / "runs"
        self.skips_one = skips_one

    def plan(self) -> list[Run]:
        """What is launched, in order."""
        return [
            Run(name="no-kill", resumes=False),
            Run(name="killed", resumes=False, kill_after_step=self.kill_after_step),
            *(run for run in RESUMES if run.name in self.resumes),
        ]

    def prepare(self, config: DemoDataConfig = DATA) -> None:
        """Data, tokenizer and image processor, unless they are there from an earlier demo."""
        from tqdm import tqdm
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        from recipes.demo.tokenizer import demo_texts, train_tokenizer

        data = self.folder / "data"
        with tqdm(total=config.num_captions + config.num_questions, unit=" crops", disable=None, leave=False) as bar:

            def tick(what: str) -> None:
                bar.set_description(what)
                bar.update("cutting" in what)

            make_demo_data(data, config, tick)
        train_tokenizer(demo_texts(data), self.folder / "tokenizer", VOCABULARY)
        size = {"height": IMAGE, "width": IMAGE}
        CLIPImageProcessorPil(size=size, crop_size=size).save_pretrained(self.folder / "image_processor")
        counts = f"{config.num_captions} crops with captions, {config.num_questions} with questions"
        print(f"data: {counts}, in {len(list(data.glob('*/tars/*.tar')))} shards")

    def launch(self, run: Run, number: int, total: int, environment: dict[str, str]) -> None:
        """Run one job under a progress bar."""
        from tqdm import tqdm

        folder = self.runs / run.name
        label = f"[{number}/{total}] {run.name:<13} {run.num_ranks} DP rank(s) x {run.num_workers} worker(s)"
        started = time.monotonic()
        last: dict[str, Any] = {}
        with tqdm(
            total=self.num_steps, initial=self.first_step(run), desc=label, unit=" steps", disable=None, leave=False
        ) as bar:
            bar.set_postfix_str("starting")

            def show(line: dict[str, Any]) -> None:
                last.update(line)
                bar.set_postfix_str(f"loss {line['loss']:.3f}")
                bar.update(1)

            run_job(
                "recipes.demo.on_cpu",
                self.arguments(run),
                folder=folder,
                num_ranks=run.num_ranks,
                on_step=show,
                kill_after_step=run.kill_after_step,
                environment=environment,
            )
        seconds = time.monotonic() - started
        end = "SIGKILL to rank 0" if run.kill_after_step is not None else "done"
        print(f"{label}: {end} after step {last['step']}, loss {last['loss']:.3f} ({seconds:.0f} s)", flush=True)

    def arguments(self, run: Run) -> list[str]:
        """The command line of a run; that of "resumed" may skip a sample."""
        settings = {
            "data.path": self.folder / "data" / "blend.yaml",
            "data.tokenizer": self.folder / "tokenizer",
            "data.image_processor": self.folder / "image_processor",
            "data.num_workers": run.num_workers,
            "train_steps": self.num_steps,
            "save_interval": self.save_interval,
            "lr": 3e-3,
            "bf16": "false",
            **{f"model.{name}": value for name, value in MODEL.items()},
            **(self._skipping(run) if self.skips_one and run.name == "resumed" else {}),
        }
        recipe = ROOT / "configs" / "demo.yaml"
        return [str(recipe), str(self.runs / run.name), *(f"--{name}={value}" for name, value in settings.items())]

    def _skipping(self, run: Run) -> dict[str, str]:
        """Settings for the encoder that skips one sample."""
        family = {"class_path": "bridge_data.encoders.Llava", "init_args": {"patch_size": PATCH}}
        key = key_to_skip(self.runs / "no-kill", self.first_step(run))
        arguments = {"family": family, "skipped_key": key}
        encoder = {"class_path": "recipes.demo.skipping.SkippingTaskEncoder", "init_args": arguments}
        return {"data.task_encoder": json.dumps(encoder)}

    def first_step(self, run: Run) -> int:
        """The steps that a run finds done: those of its newest checkpoint."""
        latest = self.runs / run.name / LATEST
        return int(latest.read_text()) if latest.exists() else 0

    def hand_over(self, run: Run) -> None:
        """Copy the newest checkpoint of the killed run to another one."""
        killed, other = self.runs / "killed", self.runs / run.name
        newest = f"iter_{self.first_step(Run(name='killed')):07d}"
        shutil.copytree(killed / newest, other / newest)
        shutil.copy(killed / LATEST, other / LATEST)

    def report_kill(self) -> None:
        """Print what the killed run left, and check that resuming from it proves something."""
        step = self.first_step(Run(name="killed"))
        if not step:
            raise SystemExit(f"the killed run left no checkpoint in {self.runs / 'killed'}")
        num_waiting = count_pending(self.runs / "killed" / f"iter_{step:07d}")
        print(f"      newest checkpoint: step {step}, with {num_waiting} samples in packing buffers")
        if not num_waiting:
            raise SystemExit("no sample was in a packing buffer: a resume from there would prove little")

    def compare(self) -> int:
        """Compare the logs, by a program of its own; its exit status."""
        first, last = self.first_step(Run(name="killed")) + 1, self.num_steps
        spans = {run.name: (str(first), str(last)) for run in self.plan() if run.resumes}
        spans = {"killed": ("1", str(self.kill_after_step - 1)), **spans}
        chosen = [x for name, span in spans.items() for x in ("--run", str(self.runs / name), *span)]
        return subprocess.run(
            [sys.executable, "-m", "recipes.demo.compare", str(self.runs / "no-kill"), *chosen]
        ).returncode


def count_pending(folder: Path) -> int:
    """Samples that were drawn but not yet trained on when this checkpoint was saved, over all lanes."""
    from bridge_data import load_states
    from bridge_data.order.pending import num_pending

    return sum(map(num_pending, load_states(folder)["lanes"].values()))


def key_to_skip(reference: Path, first_step: int) -> str:
    """A sample that the reference met for the first time well after `first_step`."""
    batches = read_run(reference)
    steps = sorted(batches)
    late = steps[(steps.index(first_step) + len(steps)) // 2]
    seen = {key for step in steps if step < late for keys in batches[step].keys for key in keys}
    return next(key for keys in batches[late].keys for key in keys if key not in seen)


def _folder(text: str) -> Path:
    return output_on_disk("--folder", text, COPY_IT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if every global batch and every loss came out equal."""
    parser = argparse.ArgumentParser(prog="python -m recipes.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=_folder, default=Path("demo_run"), help="folder for all output (demo_run)")
    parser.add_argument("--steps", type=int, default=40, help="steps of the uninterrupted run, at least 16 (40)")
    names = [run.name for run in RESUMES]
    parser.add_argument("--resumes", nargs="+", choices=names, default=names, help="what to resume as (all of them)")
    chosen = parser.parse_args(arguments)
    if chosen.steps < 16:
        parser.error("--steps: expected at least 16, so that a kill fits between two saves")

    started = time.monotonic()
    demo = Demo(chosen.folder.absolute(), chosen.steps, chosen.resumes, skips_one=bool(os.environ.get(SKIP_ONE)))
    shutil.rmtree(demo.runs, ignore_errors=True)
    try:
        demo.prepare()
        plan = demo.plan()
        for number, run in enumerate(plan, 1):
            environment = {"CUDA_VISIBLE_DEVICES": ""}  # 2 ranks want 2 GPUs; the proof is the same without
            if run.resumes:
                demo.hand_over(run)
            demo.launch(run, number, len(plan), environment)
            if run.kill_after_step is not None:
                demo.report_kill()
        print()
        status = demo.compare()
        verdict = "every run saw the same global batches" if status == 0 else "the runs DIFFER"
    except JobFailed as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
        status, verdict = 1, "a run failed, see above"
    finally:
        end_descendants()
    print(f"\n{verdict} ({time.monotonic() - started:.0f} s). Logs, checkpoints and data: {demo.folder}")
    return status


if __name__ == "__main__":
    sys.exit(main())
