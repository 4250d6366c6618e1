"""The multimodal example of Megatron-LM, unedited, on ours: `make compat CHECKOUT=../Megatron-LM`.

Its data is prepared as its README says for pretraining, and with code beside the data for the conversations of SFT,
which the README leaves to the user. Two ranks save by Megatron-LM's own code; one, two or four go on by its loading.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bridge_data.child_process import SINGLE_THREADED
from bridge_data.data.metadata import META_FOLDER
from tests.prepared import write_dataset
from tests.ranks import ROOT

CHECKOUT = os.environ.get("BRIDGE_DATA_MEGATRON_LM", "")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not CHECKOUT, reason="BRIDGE_DATA_MEGATRON_LM names no checkout (make compat sets it)"),
]

NUM_SAMPLES, SAVED_AS, MORE = 600, 3, 12
"""The samples, the iteration at which two ranks save, and the micro-batches that a resumed job takes."""

TRUST = {"BRIDGE_DATA_TRUST_DATASET_CODE": "1", "BRIDGE_DATA_TRUSTED_MODULES": "energon_util"}

SAMPLE_LOADER = """
def sample_loader(raw):
    images = [raw["jpg"]] if "jpg" in raw else []
    common = {"images": images, "texts": raw["json"]}
    return {"__key__": raw["__key__"], "similarity_matrix": None, "matched_text_indices": None, **common}

def part_filter(part):
    return part in ("jpg", "json")
"""

LIST_LOADER = """
from energon_util import OfflineTargetAspectRatioSample

def sample_loader(raw):
    def member(number):
        return OfflineTargetAspectRatioSample(
            __key__=f"{raw['__key__']}/{number}", __restore_key__=(), __subflavors__={}, __subflavor__=None,
            images=[raw["jpg"]], texts=raw["json"], target_aspect_ratio=[[2, 1]],
        )
    return {"__key__": raw["__key__"], "samples": [member(0), member(1)]}

def part_filter(part):
    return part in ("jpg", "json")
"""

PACKED = ("--packing-buffer-size", "16", "--packing-seq-length", "200")
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "pretrain": ("pretrain", ()),
    "captions": ("captions", ()),
    "sft": ("sft", ()),
    "sft_offline_packed": ("lists", ("--packing-seq-length", "200", "--use-tiling", "--max-num-tiles", "4")),
    "pretrain_packed": ("pretrain", PACKED),
    "sft_packed": ("sft", PACKED),
}
"""The data of each way to run the example, and its arguments."""

RANKS = {variant: {"whole": 2, "saved": 2, "resumed1": 1, "resumed2": 2} for variant in VARIANTS}
RANKS["sft"]["resumed4"] = 4
NUM_WORKERS = {"sft": 4}
"""The ranks of each run of a variant, and the workers of all ranks together, if there are any."""


def image(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data := BytesIO(), "JPEG")
    return data.getvalue()


def conversation(number: int, *, pictured: bool = True) -> dict[str, Any]:
    turns = [("human", f"{'<image>' * pictured}question {number}"), ("gpt", f"answer {number}{'!' * (number % 7)}")]
    sample = {"__key__": f"llava{number:06d}", "json": [{"from": who, "value": text} for who, text in turns]}
    return sample | ({"jpg": image(number)} if pictured else {})


def definition(name: str, module: str = "megatron.energon", **settings: Any) -> dict[str, Any]:
    return {"sample_type": {"__module__": module, "__class__": name}, **settings}


def write_data(folder: Path, checkout: Path) -> None:
    """The data sets, each with the metadataset of the example for it, and the tokenizer."""
    numbers = range(NUM_SAMPLES)
    by_code = {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
    fields = {"image": "jpg", "context": "json[0][value]", "answers": "json[1][value]"}
    written = {
        "pretrain": (map(conversation, numbers), definition("VQASample", field_map=fields)),
        "captions": (
            ({"__key__": f"{number:06d}", "jpg": image(number), "txt": f"caption {number}"} for number in numbers),
            definition("CaptioningSample", field_map={"image": "jpg", "caption": "txt"}),
        ),
        "sft": (
            (conversation(number, pictured=number % 3 > 0) for number in numbers),
            definition("SimilarityInterleavedSample", **by_code),
        ),
        "lists": (map(conversation, numbers), definition("SampleListSample", "energon_util", **by_code)),
    }
    codes = {"sft": SAMPLE_LOADER, "lists": LIST_LOADER}
    for name, (samples, described) in written.items():
        data = write_dataset(folder / name, samples, per_shard=50, ratio="5,1,0", definition=described)
        if name in codes:
            (data / META_FOLDER / "sample_loader.py").write_text(codes[name])
        kind = "sft" if name in codes else "pretrain"
        template = (checkout / "examples/multimodal" / f"{kind}_dataset.yaml").read_text()
        lines = [
            f"{line.partition('path:')[0]}path: {data}" if "path:" in line else line for line in template.splitlines()
        ]
        (folder / f"{name}.yaml").write_text("\n".join(lines))
    from tests.tiny_models.parts import tiny_tokenizer

    tokenizer = tiny_tokenizer("llava")
    tokenizer.add_special_tokens({"bos_token": "<s>", "unk_token": "<unk>"})
    tokenizer.save_pretrained(folder / "tokenizer")


def arguments(folder: Path, checkout: Path, variant: str, num_ranks: int, num_workers: int) -> list[str]:
    """Of the example, with the smallest model."""
    data, own = VARIANTS[variant]
    checkpoints = str(folder / "checkpoints" / variant)
    flags = ["--disable-vision-class-token", "--no-masked-softmax-fusion", "--no-gradient-accumulation-fusion"]
    settings = {
        "data-path": folder / f"{data}.yaml",
        "tokenizer-type": "MultimodalTokenizer",
        "tokenizer-model": folder / "tokenizer",
        "tokenizer-prompt-format": "mistral",
        "prompt-path": checkout / "examples/multimodal/manual_prompts.json",
        "dataloader-type": "external",
        "dataloader-save": checkpoints,
        "load": checkpoints,
        "ckpt-format": "torch",
        "language-model-type": "mistral_7b",
        "num-workers": num_workers,
        "micro-batch-size": 1,
        "global-batch-size": num_ranks,
        "train-iters": 20,
        "eval-iters": 2,
        "eval-interval": 10,
        "lr": 1e-3,
        "split": "100,0,0",
        "num-layers": 1,
        "hidden-size": 16,
        "num-attention-heads": 2,
        "seq-length": 4,
        "decoder-seq-length": 256,
        "max-position-embeddings": 512,
        "patch-dim": 14,
        "img-h": 28,
        "img-w": 28,
        "distributed-backend": "gloo",
        "transformer-impl": "local",
    }
    given = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    return [*given, *flags, *own]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of all variants: what the ranks saw, and the files that they saved."""
    made, checkout = tmp_path_factory.mktemp("example"), Path(CHECKOUT).absolute()
    write_data(made, checkout)
    runs = []
    for variant in VARIANTS:
        for name, num_ranks in RANKS[variant].items():
            num_steps = {"whole": SAVED_AS + MORE // 2, "saved": SAVED_AS}.get(name, MORE // num_ranks)
            run = {"name": f"{variant}-{name}", "num_ranks": num_ranks, "num_steps": num_steps}
            run |= {"save_as": SAVED_AS * (name == "saved"), "iteration": SAVED_AS * name.startswith("resumed")}
            num_workers = NUM_WORKERS.get(variant, 0) // num_ranks
            runs.append(run | {"arguments": arguments(made, checkout, variant, num_ranks, num_workers)})
    (made / "runs.json").write_text(json.dumps(runs))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TRUST.items():
            patch.setenv(name, value)
        run_alone("tests.compat.megatron_lm_job", str(checkout), str(made / "runs.json"))
    return made


def run_alone(module: str, *arguments: str) -> None:
    """Run `python -m module arguments` in a new process: that of `run_job` has imported the installed `megatron.core`,
    and the example wants that of its checkout."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command,
        env=os.environ | SINGLE_THREADED | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        try:
            output, _ = job.communicate(timeout=1400)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, output[-4000:]


def seen(folder: Path, name: str, first_slot: int = 0) -> list[dict[str, Any]]:
    """The micro-batches of all ranks, in the order of the job from micro-batch `first_slot` on."""
    ranks = [json.loads(file.read_text())["steps"] for file in sorted(folder.glob(f"{name}-[0-9].json"))]
    first_rank = first_slot % len(ranks)
    return [batch for step in zip(*ranks[first_rank:], *ranks[:first_rank], strict=True) for batch in step]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_example_goes_on_where_it_was_saved(folder: Path, variant: str) -> None:
    whole, first_slot = seen(folder, f"{variant}-whole"), 2 * SAVED_AS
    files = sorted(path.name for path in (folder / "checkpoints" / variant).rglob("*.pt"))
    assert files == ["train_dataloader_dprank000.pt", "train_dataloader_dprank001.pt"]
    assert seen(folder, f"{variant}-saved") == whole[:first_slot]
    for name in RANKS[variant]:
        if name.startswith("resumed"):
            assert seen(folder, f"{variant}-{name}", first_slot) == whole[first_slot:], name
    keys = [key for batch in whole for keys in batch["keys"] for key in keys.split(",")]
    assert len({*keys}) == len(keys) >= len(whole)
    is_packed = any(batch["lengths"] is not None and len(batch["lengths"]) > 2 for batch in whole)
    assert is_packed == variant.endswith("packed")
