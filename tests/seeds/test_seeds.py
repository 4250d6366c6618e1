"""Code of tutorials for Energon and Megatron-Bridge, as people have it at hand, runs with only the import changed.

`snippets/` has the code of each document in its order; `world` what is put in place of what it only names. Every
snippet is in one of two lists: `CASES`, those that a test below runs, and `NOT_COVERED`, with the reason.

What is changed, beside the import line: `nccl` is `gloo`; paths, `...` in a call and names such as
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
    TaskEncoder,
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

GET_LOADER = "from megatron.energon import get_train_dataset, get_loader, WorkerConfig"
GET_SAVABLE = "from megatron.energon import get_train_dataset, get_savable_loader, WorkerConfig"
SELECT = "def select_samples_to_pack(self, samples: List[CaptioningSample]) -> List[List[CaptioningSample]]:"
PREPARE = "> energon prepare /xx/demo_data/"
SHOWN = (
    "CaptioningSample(__key__='part_00123/00403.tar/004030195', "
    "image=tensor([[[0.4549, 0.4784, 0.5059, ..., 0.8392, 0.8275, 0.7961],"
)
SETTINGS = "batch_size=2, shuffle_buffer_size=100, max_samples_per_sequence=100"

Key = tuple[str, str, int]
"""Document, first line of the snippet, and which one in the document begins so."""

NOT_COVERED: dict[Key, str] = {
    ("004", "- _build_worker_config(", 1): "private there; what it promises of ranks, tests/datamodule holds",
    ("004", "Returns: None", 1): "no code: a section of API documentation",
}

Case = Callable[["World", Snippet], None]
CASES: dict[Key, Case] = {}


def case(document: str, first: str, number: int = 1) -> Callable[[Case], Case]:
    """Say that the decorated function runs this snippet."""

    def add(run: Case) -> Case:
        CASES[document, first, number] = run
        return run

    return add


@functools.cache
def documents() -> dict[Key, Snippet]:
    """All snippets of all documents."""
    found: dict[Key, Snippet] = {}
    for file in sorted(Path(__file__).with_name("snippets").glob("*.md")):
        for block in read_blocks(file.read_text()):
            snippet = Snippet(file.stem, block.line, block.text.strip("\n"))
            number = 1 + sum(key[:2] == (snippet.document, snippet.first) for key in found)
            found[snippet.document, snippet.first, number] = snippet
    return found


@dataclasses.dataclass
class World:
    """A folder with the data sets `coco` and `coyo`, in which a snippet runs."""

    folder: Path
    scope: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, snippet: Snippet, fill: dict[str, str] | None = None, **names: Any) -> dict[str, Any]:
        """Run a snippet, in which `print` and the training step keep the first three batches as `batches`."""
        train = Training(3)
        public = {name: getattr(bridge_data, name) for name in bridge_data.__all__}
        self.scope.update(public | names | {"train": train, "print": train, "batches": train.batches})
        return run_python(snippet, fill or {}, self.scope)

    def metadataset(self) -> None:
        """The metadataset of the documents, beside the data sets."""
        world.write_metadataset(documents()["003", "__module__: megatron.energon", 1], Path("coyo-coco-dataset.yaml"))


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


@pytest.fixture
def place(
    datasets: Path, aside: concurrent.futures.Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    for name in ("coco", "coyo"):
        Path(name).symlink_to(datasets / name)
    made = World(tmp_path)
    yield made
    aside.submit(world.close_loaders, made.scope)


def test_every_snippet_is_in_one_list() -> None:
    found, listed = set(documents()), {*CASES, *NOT_COVERED}
    assert not CASES.keys() & NOT_COVERED.keys()
    assert found - listed == set(), "snippets in neither list"
    assert listed - found == set(), "listed, but in no document"


@pytest.mark.parametrize("key", CASES, ids=lambda key: f"{key[0]}-{key[1][:40]}-{key[2]}")
def test_snippet(key: Key, place: World) -> None:
    CASES[key](place, documents()[key])


# ----- 000: from files to a data set -----------------------------------------------------------------------------


def demo_data(place: World) -> Path:
    """The files that the first picture of document 000 shows."""
    folder = place.folder / "demo_data"
    folder.mkdir()
    picture = documents()["000", "/demo_data/", 1].text
    names = re.findall(r"[\w-]+\.\w+", picture)
    for sample, (_, pair) in zip(
        world.captioned(7, 2), itertools.groupby(names, lambda name: name.partition(".")[0]), strict=True
    ):
        for name in pair:
            content = sample["jpg"] if name.endswith("png") else sample["txt"].encode()
            (folder / name).write_bytes(content)
    return folder


@case("000", "/demo_data/")
def shown_files(place: World, snippet: Snippet) -> None:
    assert sorted(path.name for path in demo_data(place).iterdir()) == [
        "000001.png",
        "000001.txt",
        "000002.png",
        "000002.txt",
    ]


def packed(place: World) -> Path:
    """The tars that the Python code of document 000 makes of the files."""
    source, target = demo_data(place), place.folder / "demo_tar"
    target.mkdir()
    fill = {'"/xx/demo_data"': repr(str(source)), '"/xxx/"': repr(str(target))}
    place.run(documents()["000", "import os", 1], fill)
    return target


@case("000", "import os")
def packing(place: World, snippet: Snippet) -> None:
    target = packed(place)
    assert [path.name for path in target.iterdir()] == ["data-000000.tar"]


@case("000", "/xxx/")
def shown_tars(place: World, snippet: Snippet) -> None:
    assert {path.name for path in packed(place).iterdir()} <= set(re.findall(r"[\w-]+\.tar", snippet.text))


def prepared(place: World) -> Path:
    """The tars, prepared by the dialogue of document 000."""
    target = packed(place)
    dialogue = documents()["000", PREPARE, 1]
    world.ask(["prepare", str(target)], world.answers_in(dialogue.text))
    return target


@case("000", PREPARE)
def preparing(place: World, snippet: Snippet) -> None:
    plan = load_plan(prepared(place))
    assert plan.num_samples == 2
    assert plan.sources[0].sample_class is CaptioningSample
    assert {field: str(access) for field, access in plan.sources[0].field_map.items()} == {
        "image": "png",
        "caption": "txt",
    }


@case("000", GET_LOADER)
def loading_what_was_prepared(place: World, snippet: Snippet) -> None:
    scope = place.run(snippet, {"'xxx/demo_tar'": repr(str(prepared(place)))})
    assert [len(batch.caption) for batch in scope["batches"]] == [2, 2, 2]
    assert {key.rpartition("/")[2] for key in scope["batches"][0].__key__} <= {"000001", "000002"}


@case("000", GET_SAVABLE)
def saving(place: World, snippet: Snippet) -> None:
    scope = place.run(snippet, {"'xxx/megatron_data'": "'coco'", "'/xxx/": "'"})
    assert len(scope["batches"]) == 1
    assert torch.load("dataloader_state_rank0.pth", weights_only=True) == scope["state"]


@case("000", GET_SAVABLE, 2)
def restoring(place: World, snippet: Snippet) -> None:
    fill = {"'xxx/megatron_data'": "'coco'", "'/xxx/": "'"}
    saved = place.run(documents()["000", GET_SAVABLE, 1], fill)["loader"]
    expected = take(saved, 6)
    saved.close()
    assert keys(take(place.run(snippet, fill)["loader"], 6)) == keys(expected)


# ----- 001 and 003: loading ---------------------------------------------------------------------------------------


def keys(batches: list[Any]) -> list[Any]:
    """The keys of batches."""
    return [batch.__key__ for batch in batches]


@case("001", GET_LOADER)
@case("003", GET_LOADER)
def batches_of_one(place: World, snippet: Snippet) -> None:
    batches = place.run(snippet, {"'/my/dataset/path'": "'coco'"})["batches"]
    assert [type(batch) for batch in batches] == [CaptioningSample] * 3
    assert all(batch.image.shape[:2] == (1, 3) and len(batch.caption) == 1 for batch in batches)


@case("003", GET_LOADER, 2)
def single_samples(place: World, snippet: Snippet) -> None:
    (sample,) = place.run(snippet, {"'/path/to/your/dataset'": "'coco'"})["batches"]
    assert isinstance(sample.__key__, str) and sample.image.shape[0] == 3 and isinstance(sample.caption, str)


@case("001", "CaptioningSample(")
@case("003", SHOWN)
def shown_sample(place: World, snippet: Snippet) -> None:
    shown = repr(take(loader_of("coco", batch_size=None), 1)[0])
    assert shown.startswith("CaptioningSample(__key__='data-")
    for field in re.findall(r"(\w+)=", snippet.text):
        assert f"{field}=" in shown


@case("001", "loader = get_loader(get_train_dataset(")
@case("003", GET_LOADER, 3)
def batches_of_two(place: World, snippet: Snippet) -> None:
    (batch,) = place.run(snippet, {"'/path/to/your/dataset'": "'coco'"})["batches"]
    assert len(batch.__key__) == len(batch.caption) == 2
    assert batch.image.shape[:2] == (2, 3) and batch.image.dtype == torch.float32


@case("003", GET_LOADER, 4)
def loading_a_blend(place: World, snippet: Snippet) -> None:
    place.metadataset()
    (batch,) = place.run(snippet)["batches"]
    assert len(batch.__key__) == 4


@case("003", GET_LOADER, 5)
def loading_as_one_of_several_ranks(place: World, snippet: Snippet) -> None:
    place.metadataset()
    seen = []
    for rank in range(2):
        fill = {"SET_YOUR_GLOBAL_DATA_RANK_HERE": str(rank), "SET_YOUR_GLOBAL_WORLD_SIZE_HERE": "2"}
        scope = place.run(snippet, fill)
        seen += keys(scope["batches"] + take(scope["loader"], 5))
    assert len(set(map(tuple, seen))) == len(seen)


@case("003", GET_SAVABLE)
def saving_and_restoring(place: World, snippet: Snippet) -> None:
    place.metadataset()
    scope = place.run(snippet)
    uninterrupted = keys(take(loader_of("coyo-coco-dataset.yaml", batch_size=4, num_lanes=8), 6))
    assert keys(scope["batches"]) == uninterrupted[:1]
    assert keys(take(scope["loader"], 5)) == uninterrupted[1:]


def loader_of(path: str, *, batch_size: int | None, num_lanes: int = 1, **settings: Any) -> Any:
    """A loader without workers."""
    config = WorkerConfig(0, 1, 0, num_lanes=num_lanes)
    settings = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100} | settings
    return get_savable_loader(get_train_dataset(path, worker_config=config, batch_size=batch_size, **settings))


@case("001", GET_SAVABLE)
def saving_in_a_training_loop(place: World, snippet: Snippet) -> None:
    asked: list[int] = []

    def should_checkpoint(step: int) -> bool:
        if step == 3:
            raise world.EnoughTraining
        asked.append(step)
        return step == 2

    fill = {"...": f"'coco', {SETTINGS}"}
    scope = place.run(snippet, fill, wc=WorkerConfig(0, 1, 2), should_checkpoint=should_checkpoint)
    assert asked == [0, 1, 2] and sorted(scope["state"]["lanes"]) == [str(lane) for lane in range(8)]


@case("001", "ds = get_train_dataset(..., worker_config=wc)")
def restoring_before_a_training_loop(place: World, snippet: Snippet) -> None:
    before = loader_of("coco", batch_size=2, num_lanes=2)
    expected = keys(take(before, 6))
    again = loader_of("coco", batch_size=2, num_lanes=2)
    take(again, 3)
    torch.save({"loader_states": {0: again.save_state_rank()}}, "checkpoint.pt")
    fill = {"...": f"'coco', {SETTINGS}"}
    scope = place.run(snippet, fill, wc=WorkerConfig(0, 1, 2), path="checkpoint.pt", dp_rank=0, torch=torch)
    assert keys(scope["batches"]) == expected[3:]


@case("001", "ds = get_train_dataset(")
def decoding_or_not_as_before_version_7(place: World, snippet: Snippet) -> None:
    """The settings that no version does without are filled in behind the path."""
    path = "'coco', worker_config=wc, shuffle_buffer_size=100, max_samples_per_sequence=100"
    for chosen, kind in (("True", torch.Tensor), ("False", list)):
        fill = {"path": path, "auto_decode=True": f"auto_decode={chosen}"}
        scope = place.run(snippet, fill, wc=WorkerConfig(0, 1, 0))
        (batch,) = take(get_savable_loader(scope["ds"]), 1)
        assert isinstance(batch.image, kind) and len(batch.caption) == 4
    assert all(isinstance(image, bytes) for image in batch.image)


# ----- 001 and 003: preparing -------------------------------------------------------------------------------------


def check_dialogue(place: World, command: str, text: str) -> None:
    """The dialogue, with each of the two answers that it offers for the caption."""
    *answers, from_text, from_json = world.answers_in(text)
    assert re.fullmatch(r"(\$ )?energon prepare \./", command)
    for number, caption in enumerate((from_text, from_json)):
        folder = place.folder / f"dataset{number}"
        world.write_tars(folder / "data-%04d.tar", world.captioned(3, 20), per_shard=2)
        os.chdir(folder)
        world.ask(["prepare", "./"], [*answers, caption])
        assert [load_plan(folder, split_part=part).num_samples for part in ("train", "val", "test")] == [16, 2, 2]
        (sample,) = take(loader_of(str(folder), batch_size=None), 1)
        assert isinstance(sample, CaptioningSample) and sample.caption.startswith("picture 3/")


@case("001", "energon prepare ./")
@case("001", "Ratio: 8,1,1")
def preparing_by_answers(place: World, snippet: Snippet) -> None:
    command, dialogue = (documents()["001", first, 1] for first in ("energon prepare ./", "Ratio: 8,1,1"))
    check_dialogue(place, command.text, dialogue.text)


@case("003", "$ energon prepare ./")
def preparing_in_a_shell(place: World, snippet: Snippet) -> None:
    command, _, dialogue = snippet.text.partition("\n")
    check_dialogue(place, command, dialogue)


@case("001", "sample_type:")
@case("001", "exclude: []")
def metadata_files(place: World, snippet: Snippet) -> None:
    """The shown dataset.yaml and split.yaml, over the shards that the latter names."""
    world.write_tars(place.folder / "set/shards/shard_%03d.tar", world.captioned(5, 20), per_shard=5)
    flags = ["--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    world.ask(["prepare", "set", *flags], [])
    Path("set/.nv-meta/dataset.yaml").write_text(documents()["001", "sample_type:", 1].text)
    Path("set/.nv-meta/split.yaml").write_text(documents()["001", "exclude: []", 1].text)
    sizes = [load_plan("set", split_part=part).num_samples for part in ("train", "val", "test")]
    assert sizes == [10, 5, 5]
    assert take(loader_of("set", batch_size=2), 1)[0].image.shape[:2] == (2, 3)


@case("001", "__module__: megatron.energon")
@case("003", "__module__: megatron.energon")
def blending(place: World, snippet: Snippet) -> None:
    world.write_metadataset(snippet, Path("blend.yaml"))
    plan = load_plan("blend.yaml")
    assert plan.weights == pytest.approx((5 / 7, 2 / 7))
    assert [Path(source.path).name for source in plan.sources] == ["coco", "coyo"]
    for part, name in (("val", "coco"), ("test", "coyo")):
        (source,) = load_plan("blend.yaml", split_part=part, training=False).sources
        assert Path(source.path).name == name


# ----- 001: task encoders -----------------------------------------------------------------------------------------


@case("001", "class MyTaskEncoder(DefaultTaskEncoder):")
def decoding_to_pillow(place: World, snippet: Snippet) -> None:
    encoder = place.run(snippet)["MyTaskEncoder"]()
    (batch,) = take(loader_of("coco", batch_size=2, task_encoder=encoder), 1)
    assert [image.mode for image in batch.image] == ["RGB", "RGB"]


# ----- 001: video and audio ---------------------------------------------------------------------------------------


@functools.cache
def seven_seconds() -> AVDecoder:
    """A video of 7 s at 25 frames a second, each with its number as a picture, with sound at 8,000 Hz."""
    data = media.write("mp4", video="libx264", audio="aac", times=range(175), num_samples=56_000, rate=8_000)
    return AVDecoder(data)


def clip_numbers(clips: list[torch.Tensor]) -> list[tuple[int, int, int]]:
    """The first and last frame of each clip, and how many it has."""
    shown = [media.numbers(clip.numpy()) for clip in clips]
    return [(numbers[0], numbers[-1], len(numbers)) for numbers in shown]


@case("001", 'decoder = SampleDecoder(av_decode="AVDecoder")')
def decoding_to_a_decoder(place: World, snippet: Snippet) -> None:
    decoder = place.run(snippet)["decoder"]
    assert isinstance(decoder.decode("clip.mp4", b"bytes"), AVDecoder)


@case("001", "dat = av_decoder.get_clips(")
def clips_of_a_video(place: World, snippet: Snippet) -> None:
    scope = place.run(snippet, av_decoder=seven_seconds())
    assert clip_numbers(scope["dat"].video_clips) == [(0, 50, 51), (100, 150, 51)]
    assert scope["batches"] == [(51, 3, media.HEIGHT, media.WIDTH)] * 2


@case("001", "from megatron.energon.av import get_clips_uniform")
def clips_at_equal_distances(place: World, snippet: Snippet) -> None:
    data = place.run(snippet, av_decoder=seven_seconds())["dat"]
    assert clip_numbers(data.video_clips) == [
        (25 * begin, min(174, 25 * begin + 75), min(175, 25 * begin + 76) - 25 * begin) for begin in range(5)
    ]
    assert {clip.shape for clip in data.audio_clips} == {(2, 24_000)}


@case("001", "frames = av_decoder.get_single_frames_uniform()")
def frames_at_equal_distances(place: World, snippet: Snippet) -> None:
    frames = place.run(snippet, av_decoder=seven_seconds())["frames"]
    assert (frames.dtype, frames.shape) == (torch.uint8, (16, 3, media.HEIGHT, media.WIDTH))


@case("001", "dat = av_decoder.get_video()")
def everything_of_a_video(place: World, snippet: Snippet) -> None:
    both = place.run(snippet, av_decoder=seven_seconds())["dat"]
    assert clip_numbers(both.video_clips) == [(0, 174, 175)]
    assert both.audio_clips[0].shape[1] >= 56_000
    for line in snippet.text.splitlines()[:2]:
        alone = place.run(dataclasses.replace(snippet, text=line), av_decoder=seven_seconds())["dat"]
        assert (len(alone.video_clips), len(alone.audio_clips)) == ((1, 0) if "get_video" in line else (0, 1))


@case("001", "def cook_crude_sample(self, sample: Union[T_sample, CrudeSample]) -> T_sample")
@case("001", "def encode_sample(self, sample: T_sample) -> T_encoded_sample")
@case("001", "def preencode_sample(self, sample: T_sample) -> T_sample")
@case("001", "def postencode_sample(self, sample: T_sample) -> T_encoded_sample")
@case("001", "def pack_selected_samples(self, samples: List[T_encoded_sample]) -> T_batch_sample")
@case("001", "def batch(self, batch: List[T_encoded_sample]) -> T_raw_batch")
def hook(place: World, snippet: Snippet) -> None:
    """A hook of this name takes as many arguments, and is called for every task encoder that overrides it."""
    shown = re.fullmatch(r"def (\w+)\(self, \w+: .+\) -> \w+", snippet.text)
    assert shown is not None
    inspect.signature(getattr(TaskEncoder, shown[1])).bind(None, None)


@case("001", SELECT)
@case("001", "ds = get_train_dataset(", 2)
def packs(place: World, snippet: Snippet) -> None:
    """The method in a task encoder that the call is given."""
    names = place.run(documents()["001", SELECT, 1], List=list)

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        max_length = 120
        select_samples_to_pack = names["select_samples_to_pack"]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return {"lengths": [len(sample.caption) for sample in samples], "keys": [s.__key__ for s in samples]}

    wc = WorkerConfig(0, 1, 0)
    settings = "shuffle_buffer_size=100, max_samples_per_sequence=100, batch_size=None"
    call = documents()["001", "ds = get_train_dataset(", 2]
    fill = {"...": f"'coco', task_encoder=encoder, worker_config=wc, {settings}"}
    loader = get_savable_loader(place.run(call, fill, wc=wc, encoder=Encoder())["ds"])
    found = take(loader, 40)
    assert all(sum(pack["lengths"]) < 120 for pack in found)
    assert max(len(pack["keys"]) for pack in found) > 1


@case("001", "@stateless")
def encoding_batches(place: World, snippet: Snippet) -> None:
    """Energon's own default, shown as an example, in a task encoder of ours."""

    @dataclasses.dataclass
    class Captions:
        __key__: list[str]
        caption: list[str]
        image: torch.Tensor
        __restore_key__: Any = None
        __subflavors__: Any = None
        __sources__: Any = None

    generics = dict.fromkeys(("T_raw_batch", "T_batch", "Generator", "Union"), _Any())
    names = place.run(snippet, dataclasses=dataclasses, is_dataclass=dataclasses.is_dataclass, **generics)

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        encode_batch = names["encode_batch"]

    (batch,) = take(loader_of("coco", batch_size=2, task_encoder=Encoder(batch_type=Captions)), 1)
    assert type(batch) is Captions and batch.image.shape[:2] == (2, 3)


class _Any:
    """A type variable or generic type, in annotations only."""

    def __getitem__(self, item: Any) -> "_Any":
        return self


@case("001", "for batch in loader:")
def pinning(place: World, snippet: Snippet) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pinned: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":  # nothing can be pinned there: see that it is asked for
            patch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
        batches = take(loader_of("coco", batch_size=2), 3)
        scope = place.run(snippet, loader=batches, device=device)
    assert scope["batch"].image.device.type == device.type
    if device.type == "cpu":
        assert len(pinned) == 3


@case("001", "from dataclasses import dataclass")
def complete_task_encoder(place: World, snippet: Snippet) -> None:
    scope = place.run(snippet)
    tokenizer = word_tokenizer()
    encoder = scope["CaptioningTaskEncoder"](tokenizer, image_transform=lambda image: image[:, :8, :8])
    with loader_of("coco", batch_size=4, task_encoder=encoder) as loader:
        (batch,) = take(loader, 1)
    assert type(batch) is scope["CaptioningBatch"] and isinstance(batch, Batch)
    assert batch.images.shape == (4, 3, 8, 8)
    assert batch.text_tokens.shape == batch.text_attn_mask.shape
    assert all(tokenizer.decode(row).startswith("picture") for row in batch.text_tokens)


def word_tokenizer() -> Any:
    """A tokenizer of whole words, made on the spot."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "picture", "of", "some", "noise"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


# ----- 001: eight ranks -------------------------------------------------------------------------------------------

BETWEEN_RUNS = "# Restore"

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


@case("001", "import torch")
def eight_ranks(place: World, snippet: Snippet) -> None:
    """Eight processes. Beside the changes above, a barrier stands between saving and restoring, which are two runs of
    a job in the document; and `new_group`, which the pairs of ranks call at the same time, is told so."""
    place.metadataset()
    text = world.python_of(snippet, {"print(batch)": "note(batch)", BETWEEN_RUNS: "torch.distributed.barrier()"})
    script = place.folder / "ranks.py"
    script.write_text(PREAMBLE + text)
    world.run_ranks(script, 8, place.folder)
    seen = {rank: json.loads(Path(f"seen{rank}.json").read_text()) for rank in (0, 1, 4, 5)}
    assert sorted(Path().glob("seen*.json")) == [Path(f"seen{rank}.json") for rank in seen]
    assert seen[0] == seen[1] and seen[4] == seen[5]
    for data_rank, rank in ((0, 0), (1, 4)):
        config = WorkerConfig(data_rank, 2, 0, num_lanes=16)
        dataset = get_train_dataset(
            "coyo-coco-dataset.yaml",
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=config,
        )
        assert seen[rank] == keys(take(get_savable_loader(dataset), 4))


# ----- 004: the DataModule ----------------------------------------------------------------------------------------


def shown_parameters(snippet: Snippet) -> list[tuple[str, str | None]]:
    """(name, default) of each parameter that API documentation shows, a line each."""
    found = []
    for line in snippet.text.splitlines()[1:]:
        parameter = re.match(r"- (\*{0,2}\w+)(?:: [^=]+?)?(?: = (.+?))?,?$", line)
        assert parameter is not None, line
        found.append((parameter[1], parameter[2]))
    return found


def check_parameters(function: Any, snippet: Snippet) -> None:
    """The function has these parameters first, in this order, with these defaults; a global batch size that is left out
    is a micro-batch of each rank."""
    ours = list(inspect.signature(function).parameters.values())
    ours = [parameter for parameter in ours if parameter.name != "self"]
    for (name, default), parameter in zip(shown_parameters(snippet), ours, strict=False):
        if name.startswith("**"):
            assert parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD), "ours are shown one by one"
            break
        assert name == parameter.name
        if default is not None and name != "global_batch_size":
            assert parameter.default == eval(default)
    assert len(ours) >= len(shown_parameters(snippet))


MODULE = "bridge.data.energon.base_energon_datamodule"


@case("004", f"- class {MODULE}.EnergonMultiModalDataModule(")
def datamodule_signature(place: World, snippet: Snippet) -> None:
    check_parameters(bridge_data.EnergonMultiModalDataModule, snippet)


@case("004", "- datasets_provider(")
def provider_signature(place: World, snippet: Snippet) -> None:
    check_parameters(bridge_data.EnergonMultiModalDataModule.datasets_provider, snippet)


@case("004", "- build()#")
@case("004", "- train_dataloader() Any#")
@case("004", "- val_dataloader()#")
@case("004", "- test_dataloader() None#")
def datamodule_method(place: World, snippet: Snippet) -> None:
    name = snippet.text.removeprefix("- ").partition("(")[0]
    assert list(inspect.signature(getattr(bridge_data.EnergonMultiModalDataModule, name)).parameters) == ["self"]


@case("004", f"- class {MODULE}.EnergonDataloader(dataloader)#")
def wrapper_signature(place: World, snippet: Snippet) -> None:
    assert next(iter(inspect.signature(bridge_data.EnergonDataloader).parameters)) == "dataloader"


@case("004", "- __next__()#")
@case("004", "- __iter__()#")
@case("004", "- save_state()#")
def wrapper_method(place: World, snippet: Snippet) -> None:
    name = snippet.text.removeprefix("- ").partition("(")[0]
    assert list(inspect.signature(getattr(bridge_data.EnergonDataloader, name)).parameters) == ["self"]


@case("004", f"- {MODULE}.cyclic_iter(iter)#")
def endless(place: World, snippet: Snippet) -> None:
    assert list(itertools.islice(bridge_data.cyclic_iter([1, 2]), 5)) == [1, 2, 1, 2, 1]
