"""Code of tutorials for Energon and Megatron-Bridge, as people have it at hand, runs with only the import changed.

`snippets/` has the code of each document in its order; `world` what is put in place of what it only names. What is
changed, beside the import line: `nccl` is `gloo`; paths, `...` in a call and names such as
SET_YOUR_GLOBAL_DATA_RANK_HERE are filled in; `pass`, which stands for a training step, is one that stops after three
batches. The two changes more that the eight ranks need are told at their test.
"""

import concurrent.futures
import dataclasses
import functools
import inspect
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bridge_data
from bridge_data import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from bridge_data.decode.av import AVDecoder
from bridge_data.plan import load_plan
from tests.decode.av import media
from tests.docs.pages import read_blocks
from tests.seeds import world
from tests.seeds.world import Snippet, Training, run_python, take
from tests.worker_server import WorkerServer

GET_LOADER = "from megatron.energon import get_train_dataset, get_loader, WorkerConfig"
GET_SAVABLE = "from megatron.energon import get_train_dataset, get_savable_loader, WorkerConfig"
ALONE = WorkerConfig(0, 1, 0)


@functools.cache
def documents() -> dict[tuple[str, str, int], Snippet]:
    """All snippets, by document, first line, and which one in the document begins so."""
    found: dict[tuple[str, str, int], Snippet] = {}
    for file in sorted(Path(__file__).with_name("snippets").glob("*.md")):
        for block in read_blocks(file.read_text()):
            snippet = Snippet(file.stem, block.line, block.text.strip("\n"))
            number = 1 + sum(key[:2] == (snippet.document, snippet.first) for key in found)
            found[snippet.document, snippet.first, number] = snippet
    return found


def snippet(document: str, first: str, number: int = 1) -> Snippet:
    return documents()[document, first, number]


@dataclasses.dataclass
class World:
    """A folder with the data sets `coco` and `coyo` and a blend of them, in which a snippet runs."""

    folder: Path
    scope: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, snippet: Snippet, fill: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
        """Run a snippet, in which `print` and the training step keep the first three batches as `batches`."""
        train = Training(3)
        public = {name: getattr(bridge_data, name) for name in bridge_data.__all__}
        self.scope.update(public | names | {"train": train, "print": train, "batches": train.batches})
        return run_python(snippet, fill or {}, self.scope)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    world.write_datasets(folder)
    return folder


@pytest.fixture(scope="module")
def aside() -> Iterator[concurrent.futures.Executor]:
    """Closes loaders while the next test runs: workers that are still being started take a second to end."""
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests run, one after the other: loaders share what starts their workers in one folder alone."""
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="module")
def server_there() -> Iterator[WorkerServer]:
    """What starts the workers of loaders in that folder."""
    server = WorkerServer()
    yield server
    server.close()


@pytest.fixture
def place(
    datasets: Path,
    aside: concurrent.futures.Executor,
    folder: Path,
    server_there: WorkerServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    monkeypatch.chdir(folder)
    server_there.be_there()
    for name in ("coco", "coyo"):
        Path(name).symlink_to(datasets / name)
    Path("coyo-coco-dataset.yaml").write_text(snippet("003", "__module__: megatron.energon").text)
    made = World(folder)
    yield made
    aside.submit(world.close_loaders, made.scope)


def keys(batches: list[Any]) -> list[Any]:
    """The keys of batches."""
    return [batch.__key__ for batch in batches]


def loader_of(path: str, *, batch_size: int | None, num_lanes: int = 1, **settings: Any) -> Any:
    """A loader without workers."""
    config = WorkerConfig(0, 1, 0, num_lanes=num_lanes)
    settings = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100} | settings
    return get_savable_loader(get_train_dataset(path, worker_config=config, batch_size=batch_size, **settings))


# ----- preparing --------------------------------------------------------------------------------------------------


def test_from_files_to_batches(place: World) -> None:
    """Document 000: its Python code packs the files that it shows, its dialogue prepares them, and they are loaded."""
    source, target = place.folder / "demo_data", place.folder / "demo_tar"
    source.mkdir()
    target.mkdir()
    for number, sample in enumerate(world.captioned(7, 2), 1):
        (source / f"{number:06d}.png").write_bytes(sample["jpg"])
        (source / f"{number:06d}.txt").write_text(sample["txt"])
    place.run(snippet("000", "import os"), {'"/xx/demo_data"': repr(str(source)), '"/xxx/"': repr(str(target))})
    dialogue = snippet("000", "> energon prepare /xx/demo_data/")
    world.ask(["prepare", str(target)], world.answers_in(dialogue.text))
    (prepared,) = load_plan(target).sources
    assert (prepared.num_samples, prepared.sample_class) == (2, CaptioningSample)
    batches = place.run(snippet("000", GET_LOADER), {"'xxx/demo_tar'": repr(str(target))})["batches"]
    assert [len(batch.caption) for batch in batches] == [2, 2, 2]
    assert {key.rpartition("/")[2] for key in batches[0].__key__} <= {"000001", "000002"}


@pytest.mark.parametrize(("document", "first"), [("001", "Ratio: 8,1,1"), ("003", "$ energon prepare ./")])
def test_dialogues_with_each_of_the_two_answers_for_the_caption(place: World, document: str, first: str) -> None:
    text = snippet(document, first).text.removeprefix("$ energon prepare ./\n")
    *answers, from_text, from_json = world.answers_in(text)
    for number, caption in enumerate((from_text, from_json)):
        folder = place.folder / f"dataset{number}"
        world.write_tars(folder / "data-%04d.tar", world.captioned(3, 20), per_shard=2)
        os.chdir(folder)
        world.ask(["prepare", "./"], [*answers, caption])
        assert [load_plan(folder, split_part=part).num_samples for part in ("train", "val", "test")] == [16, 2, 2]
        (sample,) = take(loader_of(str(folder), batch_size=None), 1)
        assert isinstance(sample, CaptioningSample) and sample.caption.startswith("picture 3/")


def test_metadata_files_over_the_shards_that_they_name(place: World) -> None:
    world.write_tars(place.folder / "set/shards/shard_%03d.tar", world.captioned(5, 20), per_shard=5)
    world.ask(["prepare", "set", "--non-interactive", "--split-ratio", "1,0,0"], [])
    Path("set/.nv-meta/dataset.yaml").write_text(snippet("001", "sample_type:").text)
    Path("set/.nv-meta/split.yaml").write_text(snippet("001", "exclude: []").text)
    assert [load_plan("set", split_part=part).num_samples for part in ("train", "val", "test")] == [10, 5, 5]
    assert take(loader_of("set", batch_size=2), 1)[0].image.shape[:2] == (2, 3)


@pytest.mark.parametrize("document", ["001", "003"])
def test_a_blend(place: World, document: str) -> None:
    Path("blend.yaml").write_text(snippet(document, "__module__: megatron.energon").text)
    plan = load_plan("blend.yaml")
    assert plan.weights == pytest.approx((5 / 7, 2 / 7))
    assert [Path(source.path).name for source in plan.sources] == ["coco", "coyo"]
    for part, name in (("val", "coco"), ("test", "coyo")):
        (source,) = load_plan("blend.yaml", split_part=part, training=False).sources
        assert Path(source.path).name == name


# ----- loading, saving, restoring ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "first", "number", "path", "shapes"),
    [
        ("001", GET_LOADER, 1, "'/my/dataset/path'", [1, 1, 1]),
        ("003", GET_LOADER, 1, "'/my/dataset/path'", [1, 1, 1]),
        ("003", GET_LOADER, 2, "'/path/to/your/dataset'", [None]),
        ("001", "loader = get_loader(get_train_dataset(", 1, "'/path/to/your/dataset'", [2]),
        ("003", GET_LOADER, 3, "'/path/to/your/dataset'", [2]),
        ("003", GET_LOADER, 4, "'coyo-coco-dataset.yaml'", [4]),
    ],
)
def test_loading(place: World, document: str, first: str, number: int, path: str, shapes: list[int | None]) -> None:
    fill = {} if "coco" in path else {path: "'coco'"}
    batches = place.run(snippet(document, first, number), fill)["batches"]
    assert [None if isinstance(batch.__key__, str) else len(batch.caption) for batch in batches] == shapes


def test_loading_as_one_of_several_ranks(place: World) -> None:
    seen = []
    for rank in range(2):
        fill = {"SET_YOUR_GLOBAL_DATA_RANK_HERE": str(rank), "SET_YOUR_GLOBAL_WORLD_SIZE_HERE": "2"}
        scope = place.run(snippet("003", GET_LOADER, 5), fill)
        seen += keys(scope["batches"] + take(scope["loader"], 5))
    assert len(set(map(tuple, seen))) == len(seen)


def test_saving_in_one_program_and_restoring_in_another(place: World) -> None:
    fill = {"'xxx/megatron_data'": "'coco'", "'/xxx/": "'"}
    scope = place.run(snippet("000", GET_SAVABLE), fill)
    assert torch.load("dataloader_state_rank0.pth", weights_only=True) == scope["state"]
    expected = keys(take(scope["loader"], 6))
    scope["loader"].close()
    assert keys(take(place.run(snippet("000", GET_SAVABLE, 2), fill)["loader"], 6)) == expected


def test_saving_and_restoring_in_one_program(place: World) -> None:
    scope = place.run(snippet("003", GET_SAVABLE))
    uninterrupted = keys(take(loader_of("coyo-coco-dataset.yaml", batch_size=4, num_lanes=8), 6))
    assert keys(scope["batches"]) == uninterrupted[:1]
    assert keys(take(scope["loader"], 5)) == uninterrupted[1:]


def test_saving_and_restoring_around_training_loops(place: World) -> None:
    def should_checkpoint(step: int) -> bool:
        if step == 3:
            raise world.EnoughTraining
        return step == 2

    fill = {"...": "'coco', batch_size=2, shuffle_buffer_size=100, max_samples_per_sequence=100"}
    config = WorkerConfig(0, 1, 2)
    state = place.run(snippet("001", GET_SAVABLE), fill, wc=config, should_checkpoint=should_checkpoint)["state"]
    world.close_loaders(place.scope)
    torch.save({"loader_states": {0: state}}, "checkpoint.pt")
    restored = snippet("001", "ds = get_train_dataset(..., worker_config=wc)")
    scope = place.run(restored, fill, wc=config, path="checkpoint.pt", dp_rank=0, torch=torch)
    assert keys(scope["batches"]) == keys(take(loader_of("coco", batch_size=2, num_lanes=8), 6))[3:]


PREAMBLE = """\
import functools
import json
import torch

# Two pairs of ranks make different groups at the same time; torch allows that only in this way.
torch.distributed.new_group = functools.partial(torch.distributed.new_group, use_local_synchronization=True)
seen = []


def note(batch):
    seen.append(batch.__key__)


def train(batch):
    note(batch)
    if len(seen) == 4:
        with open(f"seen{torch.distributed.get_rank()}.json", "w") as file:
            json.dump(seen, file)
        raise SystemExit
"""


@pytest.mark.slow
def test_eight_ranks(place: World) -> None:
    """Eight processes. Beside the changes above, a barrier stands between saving and restoring, which are two runs of
    a job in the document; and `new_group`, which the pairs of ranks call at the same time, is told so."""
    fill = {"print(batch)": "note(batch)", "# Restore": "torch.distributed.barrier()"}
    script = place.folder / "ranks.py"
    script.write_text(PREAMBLE + world.python_of(snippet("001", "import torch"), fill))
    world.run_ranks(script, 8, place.folder)
    seen = {rank: json.loads(Path(f"seen{rank}.json").read_text()) for rank in (0, 1, 4, 5)}
    assert sorted(Path().glob("seen*.json")) == [Path(f"seen{rank}.json") for rank in seen]
    assert seen[0] == seen[1] and seen[4] == seen[5]
    for data_rank, rank in ((0, 0), (1, 4)):
        config = WorkerConfig(data_rank, 2, 0, num_lanes=16)
        settings = {"batch_size": 4, "shuffle_buffer_size": 100, "max_samples_per_sequence": 100}
        dataset = get_train_dataset("coyo-coco-dataset.yaml", worker_config=config, **settings)
        assert seen[rank] == keys(take(get_savable_loader(dataset), 4))


# ----- decoders and task encoders ---------------------------------------------------------------------------------


def test_decoding_or_not_as_before_version_7(place: World) -> None:
    """The settings that no version does without are filled in behind the path."""
    path = "'coco', worker_config=wc, shuffle_buffer_size=100, max_samples_per_sequence=100"
    for chosen, kind in (("True", torch.Tensor), ("False", list)):
        fill = {"path": path, "auto_decode=True": f"auto_decode={chosen}"}
        scope = place.run(snippet("001", "ds = get_train_dataset("), fill, wc=ALONE)
        (batch,) = take(get_savable_loader(scope["ds"]), 1)
        assert isinstance(batch.image, kind) and len(batch.caption) == 4
    assert all(isinstance(image, bytes) for image in batch.image)


def test_decoding_to_pillow(place: World) -> None:
    encoder = place.run(snippet("001", "class MyTaskEncoder(DefaultTaskEncoder):"))["MyTaskEncoder"]()
    (batch,) = take(loader_of("coco", batch_size=2, task_encoder=encoder), 1)
    assert [image.mode for image in batch.image] == ["RGB", "RGB"]


def test_packs_of_a_method_that_the_document_shows(place: World) -> None:
    select = "def select_samples_to_pack(self, samples: List[CaptioningSample]) -> List[List[CaptioningSample]]:"
    names = place.run(snippet("001", select), List=list)

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        max_length = 120
        select_samples_to_pack = names["select_samples_to_pack"]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return [len(sample.caption) for sample in samples]

    settings = "shuffle_buffer_size=100, max_samples_per_sequence=100, batch_size=None"
    fill = {"...": f"'coco', task_encoder=encoder, worker_config=wc, {settings}"}
    scope = place.run(snippet("001", "ds = get_train_dataset(", 2), fill, wc=ALONE, encoder=Encoder())
    packs = take(get_savable_loader(scope["ds"]), 40)
    assert all(sum(lengths) < 120 for lengths in packs)
    assert max(map(len, packs)) > 1


def test_a_complete_task_encoder(place: World) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "picture", "of", "some", "noise"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    scope = place.run(snippet("001", "from dataclasses import dataclass"))
    encoder = scope["CaptioningTaskEncoder"](tokenizer, image_transform=lambda image: image[:, :8, :8])
    (batch,) = take(loader_of("coco", batch_size=4, task_encoder=encoder), 1)
    assert type(batch) is scope["CaptioningBatch"] and isinstance(batch, Batch)
    assert batch.images.shape == (4, 3, 8, 8)
    assert batch.text_tokens.shape == batch.text_attn_mask.shape
    assert all(tokenizer.decode(row).startswith("picture") for row in batch.text_tokens)
    if torch.cuda.is_available():
        device = torch.device("cuda")
        moved = place.run(snippet("001", "for batch in loader:"), loader=[batch], device=device)["batch"]
        assert moved.images.is_cuda


# ----- video and audio --------------------------------------------------------------------------------------------


def clip_numbers(clips: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """The first and last frame of each clip, and how many it has."""
    shown = [media.numbers(clip.numpy()) for clip in clips]
    return [(numbers[0], numbers[-1], len(numbers)) for numbers in shown]


def test_clips_and_frames_of_a_video(place: World) -> None:
    """7 s at 25 frames a second, each with its number as a picture, with sound at 8,000 Hz."""
    decoder = place.run(snippet("001", 'decoder = SampleDecoder(av_decode="AVDecoder")'))["decoder"]
    data = media.write("mp4", video="libx264", audio="aac", times=range(175), num_samples=56_000, rate=8_000)
    video = decoder.decode("clip.mp4", data)
    assert isinstance(video, AVDecoder)

    def made(first: str) -> dict[str, Any]:
        return place.run(snippet("001", first), av_decoder=video)

    scope = made("dat = av_decoder.get_clips(")
    assert clip_numbers(scope["dat"].video_clips) == [(0, 50, 51), (100, 150, 51)]
    assert scope["batches"] == [(51, 3, media.HEIGHT, media.WIDTH)] * 2
    data = made("from megatron.energon.av import get_clips_uniform")["dat"]
    ends = [min(174, 25 * begin + 75) for begin in range(5)]
    assert clip_numbers(data.video_clips) == [(25 * begin, end, end + 1 - 25 * begin) for begin, end in enumerate(ends)]
    assert {clip.shape for clip in data.audio_clips} == {(2, 24_000)}
    frames = made("frames = av_decoder.get_single_frames_uniform()")["frames"]
    assert (frames.dtype, frames.shape) == (torch.uint8, (16, 3, media.HEIGHT, media.WIDTH))
    both = made("dat = av_decoder.get_video()")["dat"]
    assert clip_numbers(both.video_clips) == [(0, 174, 175)]
    assert both.audio_clips[0].shape[1] >= 56_000


# ----- 004: the DataModule of Megatron-Bridge ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "function"),
    [
        (
            "- class bridge.data.energon.base_energon_datamodule.EnergonMultiModalDataModule(",
            bridge_data.EnergonMultiModalDataModule,
        ),
        ("- datasets_provider(", bridge_data.EnergonMultiModalDataModule.datasets_provider),
    ],
)
def test_parameters_are_those_of_the_document_in_its_order(first: str, function: Callable[..., Any]) -> None:
    """With its defaults; but a global batch size that is left out is a micro-batch of each rank."""
    ours = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    shown = re.findall(r"^- (\w+)(?:: [^=\n]+?)?(?: = (.+?))?,?$", snippet("004", first).text, re.MULTILINE)
    assert [name for name, _ in shown] == [parameter.name for parameter in itertools.islice(ours, len(shown))]
    for (name, default), parameter in zip(shown, ours, strict=False):
        if default and name != "global_batch_size":
            assert parameter.default == eval(default)
