"""One reader per replica compared with one per rank: bytes read, and time per step.

Four gloo ranks form one replica (TP2 x CP2) and draw micro-batches of four JPEGs of 500 x 400, once with
share="replicate" and once with share="broadcast". A step is one micro-batch and a barrier instead of a model.
Printed: bytes that the replica reads of shards, and milliseconds a step, the median of the steps after the first ten.

    python benchmarks/share.py [--steps 100] [--json FILE]
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds
from PIL import Image

SAMPLES, WARM_UP = 400, 10


def write_photos(folder: Path) -> None:
    """JPEGs of soft noise with captions, prepared."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    with wds.ShardWriter(str(folder / "data-%04d.tar"), maxcount=100, verbose=0) as sink:
        for number in range(SAMPLES):
            small = generator.integers(0, 256, (50, 40, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(small).resize((500, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            sink.write({"__key__": f"{number:06d}", "jpg": file.getvalue(), "txt": str(number)})
    command = ["prepare", str(folder), "--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "2"]
    sample = ["--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}']
    subprocess.run([sys.executable, "-m", "bridge_data.tools.cli", *command, *sample], check=True, capture_output=True)


def run_rank(data: str, steps: int, target: str) -> None:
    """One of the four ranks; rank 0 writes the figures."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    from bridge_data import DefaultTaskEncoder, EnergonMultiModalDataModule, SampleDecoder, storage

    class Photos(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = SampleDecoder(image_decode="torchrgb8")

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, context_parallel_size=2)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    read, num_bytes = storage.read, 0

    def counted(path: Any, start: int, size: int) -> bytes:
        nonlocal num_bytes
        num_bytes += size * str(path).endswith(".tar")
        return read(path, start, size)

    storage.read = counted
    figures = {}
    for share in ("replicate", "broadcast"):
        num_bytes = 0
        module = EnergonMultiModalDataModule(
            data,
            None,
            micro_batch_size=4,
            global_batch_size=4,
            num_workers=0,
            task_encoder=Photos(),
            pg_collection=groups,
            share=share,  # type: ignore[arg-type]
        )
        loader, seconds = module.train_dataloader(), []
        for _ in range(steps):
            begin = time.perf_counter()
            next(loader)
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
        loader.close()
        total = torch.tensor(num_bytes)
        dist.all_reduce(total)
        figures[share] = {"bytes": int(total), "ms": 1e3 * statistics.median(seconds[WARM_UP:])}
    if dist.get_rank() == 0:
        Path(target).write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name) / "photos")
        target = Path(name) / "figures.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
        rank = [__file__, "--rank", str(Path(name) / "photos"), str(arguments.steps), str(target)]
        subprocess.run([*launcher, *rank], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
        figures = json.loads(target.read_text())
    print(f"{'':12s}{'MB read':>10s}{'ms a step':>12s}")
    for share, row in figures.items():
        print(f"{share:12s}{row['bytes'] / 1e6:10.1f}{row['ms']:12.1f}")
    ratios = [figures["broadcast"][what] / figures["replicate"][what] for what in ("bytes", "ms")]
    print(f"{'ratio':12s}{ratios[0]:10.2f}{ratios[1]:12.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
