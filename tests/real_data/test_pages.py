"""Pages of GIMP's manual, from the package to batches of interleaved documents."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from bridge_data import (
    Batch,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    InterleavedSample,
    LaneDataset,
    Sample,
    SampleDecoder,
    basic_sample_keys,
    edataclass,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from tests.real_data.loading import WORKERS, read_all, read_interrupted
from tests.real_data.pages import PACKAGE, PAGES, Page, find_pages, prepare_pages, read_page

IMAGE = 16


@stateless
def cook_page(sample: CrudeSample) -> InterleavedSample:
    """The texts and images of a page in their order."""
    items = sample["json"]["sequence"]
    sequence = [item["text"] if "text" in item else sample[item["image"]] for item in items]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


@edataclass
class Document(Sample):
    """Texts with a mark at the place of each image, the images at one size, and their original sizes and pixels."""

    text: str
    images: torch.Tensor
    sizes: list[tuple[int, int]]
    digests: list[str]


@edataclass
class Documents(Batch):
    """Several documents; all images in one tensor, and how many each has."""

    text: list[str]
    images: torch.Tensor
    num_images: torch.Tensor
    sizes: list[list[tuple[int, int]]]
    digests: list[list[str]]


class Interleave(DefaultTaskEncoder):
    cookers = (Cooker(cook_page),)
    decoder = SampleDecoder(image_decode="torchrgb8")

    @stateless
    def encode_sample(self, sample: InterleavedSample) -> Document:
        images = [item for item in sample.sequence if isinstance(item, torch.Tensor)]
        small = [torch.nn.functional.interpolate(i[None].float(), (IMAGE, IMAGE), mode="area") for i in images]
        return Document.derive_from(
            sample,
            text="\n".join("<image>" if isinstance(item, torch.Tensor) else item for item in sample.sequence),
            images=torch.cat(small),
            sizes=[(image.shape[2], image.shape[1]) for image in images],
            digests=[digest_of(image.permute(1, 2, 0).contiguous().numpy().tobytes()) for image in images],
        )

    @stateless
    def batch(self, samples: list[Document]) -> Documents:
        return Documents.from_samples(
            samples,
            images=torch.cat([sample.images for sample in samples]),
            num_images=torch.tensor([len(sample.images) for sample in samples]),
        )


def digest_of(pixels: bytes) -> str:
    return hashlib.sha256(pixels).hexdigest()


@pytest.fixture(scope="module")
def found(package: Callable[[str], Path]) -> dict[str, Page]:
    return find_pages(package(PACKAGE))


@pytest.fixture(scope="module")
def pages(package: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_pages(package(PACKAGE), tmp_path_factory.mktemp("gimp"))


def train(pages: Path) -> LaneDataset:
    return get_train_dataset(
        pages,
        worker_config=WORKERS,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=10,
        repeat=False,
        task_encoder=Interleave(),
    )


def test_a_page_is_read_as_texts_and_images() -> None:
    page = read_page(
        '<html><head><title>A\n Tool</title></head><body><div class="navheader"><img src="images/prev.png"/>Prev</div>'
        '<p>Click\n  <b>here</b>:<img src="images/a/one.png"> then</p><div class="note"><img src="images/note.png"/>'
        '</div><img src="images/b/two.jpg"/></body></html>'
    )
    assert page == Page("A Tool", ["Click here:", Path("images/a/one.png"), "then", Path("images/b/two.jpg")])


@pytest.mark.data
def test_the_package_holds_365_pages_with_several_images(found: dict[str, Page]) -> None:
    assert len(found) == 365
    flare = found["gimp-filter-lens-flare"]
    assert flare.title == "6.4. Lens Flare"
    assert flare.sequence[1:4:2] == [
        Path("images/filters/examples/taj_orig.jpg"),
        Path("images/filters/examples/light-taj-flarefx.jpg"),
    ]
    assert flare.sequence[2] == "Original image"


@pytest.mark.data
def test_every_page_arrives_with_its_texts_and_images_in_order(
    pages: Path, found: dict[str, Page], package: Callable[[str], Path]
) -> None:
    folder = package(PACKAGE) / PAGES
    pictures = {path for page in found.values() for path in page.images}
    pixels = {path: Image.open(folder / path).convert("RGB") for path in pictures}
    got = {}
    for part, size in (("train", 320), ("val", 45)):
        dataset = get_val_dataset(
            pages, split_part=part, worker_config=WORKERS, batch_size=4, task_encoder=Interleave()
        )
        batches = read_all(dataset)
        assert sum(len(batch.__key__) for batch in batches) == size
        for batch in batches:
            assert batch.images.shape == (int(batch.num_images.sum()), 3, IMAGE, IMAGE)
            for number, key in enumerate(batch.__key__):
                name = key.partition("/")[2]
                assert name not in got
                got[name] = (batch.text[number], batch.sizes[number], batch.digests[number])
    assert got == {
        name: (
            "\n".join("<image>" if isinstance(item, Path) else item for item in page.sequence),
            [pixels[path].size for path in page.images],
            [digest_of(pixels[path].tobytes()) for path in page.images],
        )
        for name, page in found.items()
    }


@pytest.mark.data
def test_an_interrupted_epoch_of_pages_is_the_same(pages: Path) -> None:
    whole = read_all(train(pages))
    keys = [key for batch in whole for key in batch.__key__]
    assert len(keys) == len(set(keys)) == 320
    resumed = read_interrupted(lambda: train(pages), after=len(whole) // 3)
    assert [batch.__key__ for batch in resumed] == [batch.__key__ for batch in whole]
    assert [batch.text for batch in resumed] == [batch.text for batch in whole]
    assert all(torch.equal(one.images, other.images) for one, other in zip(resumed, whole, strict=True))
