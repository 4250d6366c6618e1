"""Stamps of Tux Paint, from the package to batches: captions in one language and in many, packed ones, spoken ones."""

import collections
import functools
import hashlib
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from PIL import Image

from bridge_data import (
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    FileStoreCachePool,
    LaneDataset,
    Packing,
    Sample,
    SampleDecoder,
    SkipSample,
    TextSample,
    basic_sample_keys,
    cooker,
    edataclass,
    get_train_dataset,
    get_val_dataset,
    packing_efficiency,
    stateless,
)
from bridge_data.decode.av import AVDecoder
from bridge_data.task.stores import CachePool, FileStore, NoCachePool
from tests.real_data.loading import WORKERS, open_loader, read_all, read_interrupted
from tests.real_data.stamps import PACKAGE, STAMPS, Stamp, find_stamps, prepare_stamps, prepare_voices

pytestmark = pytest.mark.data

CAPACITY = 512


@edataclass
class SmallStamp(Sample):
    """A stamp of 32 × 32 pixels, with the size and a digest of all its pixels."""

    image: torch.Tensor
    size: tuple[int, int]
    digest: str
    caption: str


class Shrink(DefaultTaskEncoder):
    decoder = SampleDecoder(image_decode="torchrgb8")

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> SmallStamp:
        image = sample.image
        small = torch.nn.functional.interpolate(image[None].float(), (32, 32), mode="area")[0]
        digest = hashlib.sha256(image.permute(1, 2, 0).contiguous().numpy().tobytes()).hexdigest()
        size = (image.shape[2], image.shape[1])
        return SmallStamp.derive_from(sample, image=small, size=size, digest=digest, caption=sample.caption)


@stateless
def cook_language(sample: CrudeSample) -> TextSample:
    """The caption in the language that the metadataset asks for; stamps without it are left out."""
    captions = sample["json"]
    language = sample["__subflavors__"]["language"]
    if language not in captions:
        raise SkipSample
    return TextSample(**basic_sample_keys(sample), text=captions[language])


class Languages(DefaultTaskEncoder):
    cookers = (Cooker(cook_language),)
    decoder = SampleDecoder(handlers={"png": bytes})


@stateless
def cook_all_languages(sample: CrudeSample) -> Any:
    """Every caption of a stamp, as a sample of its own."""
    for language, caption in sample["json"].items():
        yield TextSample(**basic_sample_keys(sample), text=f"{language}: {caption}")


class Pack(DefaultTaskEncoder):
    decoder = SampleDecoder(handlers={"png": bytes})
    cookers = (Cooker(cook_all_languages),)

    def __init__(self, packer: str) -> None:
        super().__init__()
        self.select_samples_to_pack = Packing(
            length=lambda sample: len(sample.text.encode()), capacity=CAPACITY, overlong="alone", packer=packer
        )

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Any:
        return Texts.derive_from(samples[0], texts=[sample.text for sample in samples])


@edataclass
class Texts(Sample):
    """The captions of a pack."""

    texts: list[str]


@edataclass
class Spoken(Sample):
    """A French caption, written and spoken: a `Lazy` until the sample is encoded, then a waveform of one channel."""

    text: str
    voice: Any
    rate: int = 0


@stateless
@cooker(need_cache=True)
def cook_spoken(sample: CrudeSample, voices: FileStore, cache: CachePool) -> Spoken:
    """A caption with the promise of its recording, which is in another data set, by the key of the stamp."""
    key = stamp_of(sample["__key__"])
    recording = cache.get_lazy(voices, f"{key}_desc_fr.ogg")
    return Spoken(**basic_sample_keys(sample), text=sample["json"]["fr"], voice=recording)


class French(DefaultTaskEncoder):
    cookers = (Cooker(cook_spoken),)
    decoder = SampleDecoder(handlers={"png": bytes})

    @stateless(failure_tolerance=math.inf)
    def encode_sample(self, sample: Spoken) -> Spoken:
        with sample.voice.get(sample) as recording:
            rate = recording.get_audio_samples_per_second()
            (voice,) = recording.get_audio().audio_clips
        return Spoken.derive_from(sample, text=sample.text, voice=voice[0], rate=rate)


@pytest.fixture(scope="module")
def found(package: Callable[[str], Path]) -> dict[str, Stamp]:
    return find_stamps(package(PACKAGE))


@pytest.fixture(scope="module")
def stamps(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_stamps(package(PACKAGE), tmp_path_factory.mktemp("tuxpaint"))


def train(path: Path, encoder: DefaultTaskEncoder, **settings: Any) -> LaneDataset:
    defaults = {"batch_size": 16, "shuffle_buffer_size": 200, "max_samples_per_sequence": 20, "repeat": False}
    return get_train_dataset(path, worker_config=WORKERS, task_encoder=encoder, **defaults | settings)


def packed(stamps: Path, packer: str) -> LaneDataset:
    """The captions of all languages in packs."""
    return train(stamps, Pack(packer), batch_size=None, packing_buffer_size=500, dataset_config="crude.yaml")


def stamp_of(key: str) -> str:
    """The stamp that a sample's key, which begins with its shard's name, is of."""
    return key.partition("/")[2]


def test_the_package_holds_785_captioned_pictures_in_77_languages(found: dict[str, Stamp]) -> None:
    assert len(found) == 785
    languages = collections.Counter(language for stamp in found.values() for language in stamp.captions)
    assert len(languages.keys() - {"en"}) == 77
    assert (languages["en"], languages["de"], languages["ta"]) == (785, 785, 56)


def test_every_picture_arrives_with_its_size_its_pixels_and_its_caption(stamps: Path, found: dict[str, Stamp]) -> None:
    dataset = get_val_dataset(stamps, split_part="train", worker_config=WORKERS, batch_size=16, task_encoder=Shrink())
    batches = read_all(dataset)
    assert all(batch.image.shape == (len(batch.__key__), 3, 32, 32) for batch in batches)
    got = {
        stamp_of(key): (size, digest, caption)
        for batch in batches
        for key, size, digest, caption in zip(batch.__key__, batch.size, batch.digest, batch.caption, strict=True)
    }
    assert len(got) == sum(len(batch.__key__) for batch in batches)
    expected = {}
    for key, stamp in found.items():
        picture = Image.open(stamp.picture).convert("RGB")
        expected[key] = (picture.size, hashlib.sha256(picture.tobytes()).hexdigest(), stamp.captions["en"])
    assert got == expected


def test_an_interrupted_epoch_brings_every_stamp_once_and_the_same_batches(
    stamps: Path, found: dict[str, Stamp]
) -> None:
    whole = read_all(train(stamps, Shrink()))
    assert sorted(stamp_of(key) for batch in whole for key in batch.__key__) == sorted(found)
    resumed = read_interrupted(lambda: train(stamps, Shrink()), after=len(whole) // 2)
    assert [batch.__key__ for batch in resumed] == [batch.__key__ for batch in whole]
    assert [batch.caption for batch in resumed] == [batch.caption for batch in whole]
    assert all(torch.equal(one.image, other.image) for one, other in zip(resumed, whole, strict=True))


def test_captions_come_in_the_languages_of_a_blend(stamps: Path, found: dict[str, Stamp]) -> None:
    blend = stamps.with_name("languages.yaml")
    languages = ("de", "ja", "zh_CN", "ta")
    items = [
        {"path": "stamps", "repetitions": 1, "dataset_config": "crude.yaml", "subflavors": {"language": language}}
        for language in languages
    ]
    document = {"splits": {"train": {"blend_epochized": items}}}
    blend.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", **document}))
    with open_loader(train(blend, Languages())) as loader:
        batches = list(loader)
        skipped = loader.skipped
    got = collections.Counter(
        (stamp_of(key), subflavors["language"], text)
        for batch in batches
        for key, subflavors, text in zip(batch.__key__, batch.__subflavors__, batch.text, strict=True)
    )
    expected = collections.Counter(
        (key, language, stamp.captions[language])
        for key, stamp in found.items()
        for language in languages
        if language in stamp.captions
    )
    assert got == expected
    assert skipped == {"cook_crude_sample": len(languages) * len(found) - expected.total()}


@pytest.mark.parametrize(("packer", "least"), [("greedy", 0.90), ("first_fit_decreasing", 0.98)])
def test_captions_of_all_languages_fill_their_packs(
    stamps: Path, found: dict[str, Stamp], packer: str, least: float
) -> None:
    packs = read_all(packed(stamps, packer))
    got = collections.Counter(text for pack in packs for text in pack.texts)
    assert got == collections.Counter(
        f"{language}: {caption}" for stamp in found.values() for language, caption in stamp.captions.items()
    )
    sums = [sum(len(text.encode()) for text in pack.texts) for pack in packs]
    assert all(length <= CAPACITY or len(pack.texts) == 1 for length, pack in zip(sums, packs, strict=True))
    efficiency = packing_efficiency(sums, [[number] for number in range(len(sums))], CAPACITY)
    assert efficiency >= least


def test_an_interrupted_epoch_of_packs_is_the_same(stamps: Path) -> None:
    make = functools.partial(packed, stamps, "best_fit")
    packs = read_all(make())
    resumed = read_interrupted(make, after=len(packs) // 2)
    assert [pack.texts for pack in resumed] == [pack.texts for pack in packs]


@pytest.mark.parametrize(("kind", "pool"), [("dataset", "disk"), ("folder", "none")])
def test_captions_come_with_their_recordings_out_of_auxiliary_data(
    stamps: Path, found: dict[str, Stamp], package: Callable[[str], Path], tmp_path: Path, kind: str, pool: str
) -> None:
    recordings = package(PACKAGE) / STAMPS
    spoken = {key: recordings / f"{key}_desc_fr.ogg" for key in found}
    silent = {key for key, file in spoken.items() if not file.is_file()}
    voices = f"filesystem://{recordings}"
    if kind == "dataset":
        voices = str(prepare_voices(package(PACKAGE), tmp_path, "fr"))
    split = {"path": str(stamps), "dataset_config": "crude.yaml", "aux": {"voices": voices}}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
    metadataset = tmp_path / "french.yaml"
    metadataset.write_text(json.dumps(document))
    cache_pool = NoCachePool() if pool == "none" else FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=2)
    with open_loader(train(metadataset, French(), batch_size=None), cache_pool=cache_pool) as loader:
        samples = {stamp_of(sample.__key__): sample for sample in loader}
        assert loader.skipped == {"encode_sample": len(silent)}
    cache_pool.close()
    assert samples.keys() == found.keys() - silent
    for key, sample in samples.items():
        assert sample.text == found[key].captions["fr"]
        assert sample.__sources__[-1].file_names == (f"{key}_desc_fr.ogg",)
    for key in sorted(samples)[::40]:
        with av.open(str(spoken[key])) as container:
            pieces = [torch.from_numpy(frame.to_ndarray()) for frame in container.decode(audio=0)]
            assert samples[key].rate == container.streams.audio[0].rate
        assert torch.equal(samples[key].voice, torch.cat(pieces, dim=1)[0])


def test_any_stretch_of_a_recording_is_what_pyav_decodes_of_it(package: Callable[[str], Path]) -> None:
    draw = random.Random(0)
    recordings = sorted((package(PACKAGE) / STAMPS).rglob("*_desc_*.ogg"))
    assert len(recordings) > 7000
    for file in recordings[::60]:
        with av.open(str(file)) as container:
            whole = torch.cat([torch.from_numpy(frame.to_ndarray()) for frame in container.decode(audio=0)], dim=1)
        with AVDecoder(file.read_bytes()) as decoder:
            for _ in range(3):
                begin, end = sorted(draw.sample(range(whole.shape[1] + 1), 2))
                (clip,), _ = decoder.get_audio_clips([(begin, end)], "samples")
                assert torch.equal(clip, whole[:, begin:end]), (file, begin, end)
