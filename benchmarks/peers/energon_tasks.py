"""The task encoders of the workloads, as a user of Megatron-Energon writes them; they are the same for us.

Imports whichever of the two the environment has. `make_loader` makes a savable loader of a workload.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import torch
import work

try:
    from bridge_data.energon.av import get_single_frames_uniform

    import bridge_data as api
except ImportError:
    import megatron.energon as api  # type: ignore[no-redef]
    from megatron.energon.av import get_single_frames_uniform

PATHS = dict.fromkeys(("blend", "aux", "sources"), "metadataset.yaml")


@api.edataclass
class Chat(api.Sample):
    """Tokens and labels of one chat."""

    tokens: torch.Tensor
    labels: torch.Tensor


@api.edataclass
class PackedChats(api.Sample):
    """A sequence of `work.CAPACITY` tokens."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor


@api.edataclass
class Medium(api.Sample):
    """A video or audio, and what becomes of it."""

    content: Any


class Images(api.DefaultTaskEncoder):
    """JPEGs to uint8."""

    decoder = api.SampleDecoder(image_decode="torchrgb8")


class Photos(api.DefaultTaskEncoder):
    """Large JPEGs to small float images."""

    decoder = api.SampleDecoder(image_decode="pilrgb")

    @api.stateless
    def encode_sample(self, sample: Any) -> Any:
        sample.image = work.image_resized(sample.image)
        return sample


@api.stateless
def cook_medium(sample: Any) -> Medium:
    """The decoder of a video or audio, which decodes when it is asked."""
    content = sample["mp4" if "mp4" in sample else "flac"]
    return Medium(**api.basic_sample_keys(sample), content=content)


class Videos(api.DefaultTaskEncoder):
    """Evenly spaced frames of videos."""

    cookers = [api.Cooker(cook_medium)]  # noqa: RUF012

    @api.stateless
    def encode_sample(self, sample: Medium) -> Medium:
        sample.content = get_single_frames_uniform(sample.content, work.NUM_FRAMES)
        return sample


class Audio(api.DefaultTaskEncoder):
    """Waveforms."""

    cookers = [api.Cooker(cook_medium)]  # noqa: RUF012

    @api.stateless
    def encode_sample(self, sample: Medium) -> Medium:
        (samples,) = sample.content.get_audio().audio_clips
        sample.content = work.waveform(samples)
        return sample


@api.stateless
def cook_chat(sample: Any) -> Chat:
    """A chat of its JSON."""
    tokens, labels = work.chat_tokens(sample["json"])
    return Chat(**api.basic_sample_keys(sample), tokens=tokens, labels=labels)


class Chats(api.DefaultTaskEncoder):
    """Chats in packs."""

    cookers = [api.Cooker(cook_chat)]  # noqa: RUF012

    def select_samples_to_pack(self, samples: list[Chat]) -> list[list[Chat]]:
        return work.chosen_packs(samples, lambda sample: len(sample.tokens))

    @api.stateless
    def pack_selected_samples(self, samples: list[Chat]) -> PackedChats:
        tokens, labels, positions = work.packed([one.tokens for one in samples], [one.labels for one in samples])
        keys = ",".join(one.__key__ for one in samples)
        return PackedChats.derive_from(samples[0], __key__=keys, tokens=tokens, labels=labels, positions=positions)


@api.stateless
def cook_question(sample: Any, *, photos: Any) -> Any:
    """A question with the photo that it refers to."""
    image = photos.get(f"{sample['json']['photo']}.jpg", sample)
    question = sample["json"]["question"]
    return api.VQASample(**api.basic_sample_keys(sample), image=image, context=question, answers=["none"])


class Questions(Images):
    """Questions, each with a photo of another data set."""

    cookers = [api.Cooker(cook_question)]  # noqa: RUF012


ENCODERS = {"jpeg": Images, "s3": Images, "sources": Images, "photos": Photos, "chat": Chats, "aux": Questions}
ENCODERS |= {"video": Videos, "audio": Audio}


def make_loader(workload: str, data: Path | str, workers: int, encoder: Any = None) -> Any:
    """A loader of a workload's data, with the settings that all libraries share."""
    path = data if workload == "s3" else Path(data) / PATHS.get(workload, "tars")
    dataset = api.get_train_dataset(
        path,
        worker_config=api.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=work.BATCH_SIZES[workload],
        packing_buffer_size=work.PACKING_BUFFER if workload == "chat" else None,
        shuffle_buffer_size=work.SHUFFLE_BUFFER,
        max_samples_per_sequence=work.RUN_LENGTH,
        task_encoder=encoder or ENCODERS.get(workload, api.DefaultTaskEncoder)(),
    )
    return api.get_savable_loader(dataset)


class Prepared(measure.Loader):
    """A savable loader of prepared shards; `settings` are what was chosen for the library."""

    def __init__(self, loader: Any, workload: str, settings: dict[str, Any]) -> None:
        self.loader = loader
        self.settings = settings | {
            "format": "prepared tars",
            "batch_size": work.BATCH_SIZES[workload],
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        values = next(getattr(batch, name) for name in ("tokens", "image", "content", "text") if hasattr(batch, name))
        return list(zip(batch.__key__, values, strict=True))

    def save(self) -> Any:
        return self.loader.save_state_rank()

    def restore(self, state: Any) -> None:
        self.loader.restore_state_rank(state)
