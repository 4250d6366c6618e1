"""What a row says of one image or video reaches the batch: from JSON lines through a loader, for each family."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from bridge_data import SampleError, WorkerConfig, get_loader, get_val_dataset, reraise_exception, write
from bridge_data.encoders import (
    FamilyTaskEncoder,
    ImageLimits,
    QwenVLTaskEncoder,
    VideoConversationSample,
    VideoSampling,
    Visual,
    VisualSettings,
)
from bridge_data.encoders.encoder_config import FamilyConfig
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from tests.decode.av.media import decode_all
from tests.decode.av.media import write as write_medium
from tests.encoders.parts import CASES, encode, make_tokenizer, png
from tests.encoders.qwen_parts import FAMILIES, MERGE, PATCH, make_family, qwen_tokenizer
from tests.plugins.convert.originals import converted

RATE, NUM_FRAMES = 25, 125
ANSWER = {"role": "assistant", "content": "a boat"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 5 seconds, frames of another (as files, too), and pictures."""
    folder = tmp_path_factory.mktemp("visuals")
    (folder / "clip.mp4").write_bytes(write_medium("mp4", video="mpeg4", times=range(NUM_FRAMES)))
    (folder / "frames").mkdir()
    for number in range(12):
        name = f"frames/{number}.png"  # 10.png after 9.png
        (folder / name).write_bytes(png(Image.fromarray(frame(number))))
    (folder / "frames/notes.txt").write_text("frames of a clip")
    (folder / "frames/._0.png").write_bytes(b"of a Mac")
    pixels = np.random.default_rng(7).integers(0, 255, (40, 72, 3), dtype=np.uint8)
    (folder / "wide.png").write_bytes(png(Image.fromarray(pixels)))
    return folder


def frame(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype=np.uint8)


def batches_of(path: Path, encoder: Any) -> list[Any]:
    """The batches of a data set, one sample each."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    settings = {"worker_config": config, "batch_size": 1, "task_encoder": encoder}
    return list(get_loader(get_val_dataset(path, split_part="train", **settings)))


def read(folder: Path, row: dict[str, Any], encoder: Any) -> Any:
    """The batch of a row in place; a SampleError at once."""
    path = folder / "chat.jsonl"
    path.write_text(json.dumps(row) + "\n")
    prepare_jsonl(path)
    (batch,) = batches_of(path, encoder)
    return batch


def qwen(name: str, **settings: Any) -> QwenVLTaskEncoder:
    return QwenVLTaskEncoder(qwen_tokenizer(name), make_family(name), seq_length=8192, **settings)


def asked(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what"}]}, ANSWER], **more}


def video(**said: Any) -> dict[str, Any]:
    return asked({"type": "video", "video": "clip.mp4", **said})


def image(**said: Any) -> dict[str, Any]:
    return asked({"type": "image", "image": "wide.png", **said})


def times_in(batch: Any, encoder: Any) -> list[float]:
    return [float(time) for time in re.findall(r"<([\d.]+) seconds>", encoder.tokenizer.decode(batch.tokens[0]))]


def assert_shows(batch: Any, name: str, frames: torch.Tensor, times: list[float], encoder: Any) -> None:
    """The video of a batch is that of these frames, all of them taken, at these seconds."""
    every = qwen(name, sampling=VideoSampling(fps=None))
    talk = [{"role": "user", "content": "<video>\nwhat"}, ANSWER]
    sample = encode(every, VideoConversationSample(__key__="v", messages=talk, videos=[frames]))
    expected = every.batch_media([sample.media])
    media = batch.model_inputs()
    assert torch.equal(media["video_grid_thw"], expected["video_grid_thw"])
    assert torch.equal(media["pixel_values_videos"], expected["pixel_values_videos"])
    if name == "qwen3_vl":
        steps = [sum(times[at : at + 2]) / len(times[at : at + 2]) for at in range(0, len(times), 2)]
        assert times_in(batch, encoder) == pytest.approx(steps, abs=0.051)


# Which frames of a file

CHOSEN = [
    ({"fps": 1}, [0, 41, 83, 124]),  # 5 are wanted, and the number is even
    ({"fps": "0.5"}, [0, 41, 83, 124]),  # at least 4
    ({"fps": 0.5, "min_frames": 2}, [0, 124]),
    ({"fps": 10, "max_frames": 6}, [0, 25, 50, 74, 99, 124]),
    ({"min_frames": 11}, [0, 11, 23, 34, 45, 56, 68, 79, 90, 101, 113, 124]),
    ({"nframes": 6}, [0, 25, 50, 74, 99, 124]),
    ({"nframes": 5}, [0, 41, 83, 124]),
    ({"video_start": 1, "video_end": 3}, [25, 42, 58, 75]),
    ({"video_start": 2.5, "nframes": 2}, [63, 124]),
    ({"video_end": 1.99, "fps": 2}, [0, 16, 33, 49]),
    ({"video_start": 4, "video_end": 60, "fps": None, "nframes": 2}, [100, 124]),
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("said", "frames"), CHOSEN)
def test_a_video_is_sampled_as_its_part_says(said: dict[str, Any], frames: list[int], name: str, folder: Path) -> None:
    encoder = qwen(name)
    shown = torch.from_numpy(decode_all((folder / "clip.mp4").read_bytes())[frames])
    batch = read(folder, video(**said), encoder)
    assert_shows(batch, name, shown, [number / RATE for number in frames], encoder)
    if name == "qwen2_5_vl":
        first, last = said.get("video_start") or 0, min(said.get("video_end") or 5, 4.96)
        seconds = (last - first + 1 / RATE) / (len(frames) / 2)
        assert batch.model_inputs()["second_per_grid_ts"].item() == pytest.approx(seconds, rel=0.02)


TWO = {"messages": [{"role": "user", "content": "<video> and <video>"}, ANSWER]}
NAMED = {"messages": [{"role": "user", "content": [{"type": "video", "fps": 1}, "what"]}, ANSWER]}


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [{"role": "user", "content": "<video>\nwhat"}, ANSWER],
            "videos": [{"video": "clip.mp4", "fps": 1}],
        },
        {"messages": [{"role": "user", "content": "<video>\nwhat"}, ANSWER], "video": {"path": "clip.mp4", "fps": 1}},
        {"messages": [{"role": "user", "content": "what"}, ANSWER], "videos": ["clip.mp4"], "fps": [1]},
        {"messages": [{"role": "user", "content": "what"}, ANSWER], "video": "clip.mp4", "fps": 1.0, "nframes": None},
        {**NAMED, "videos": ["clip.mp4"]},
        asked({"type": "video_url", "video_url": {"url": "clip.mp4", "fps": 1}}),
    ],
    ids=["item", "dict", "list of the row", "row", "part without a name", "url"],
)
@pytest.mark.parametrize("kind", ["in place", "converted"])
def test_settings_are_where_people_put_them(row: dict[str, Any], kind: str, folder: Path, tmp_path: Path) -> None:
    encoder = qwen("qwen3_vl")
    expected = read(folder, video(fps=1), encoder).model_inputs()
    assert expected["video_grid_thw"][0, 0] == 2
    batch = read(folder, row, encoder)
    if kind == "converted":
        (batch,) = batches_of(converted(folder / "chat.jsonl", tmp_path / "made"), encoder)
    got = batch.model_inputs()
    assert all(torch.equal(got[field], expected[field]) for field in expected)


def test_each_video_of_a_row_has_its_own_settings(folder: Path) -> None:
    encoder = qwen("qwen3_vl")
    row = {**TWO, "videos": ["clip.mp4", "clip.mp4"], "nframes": [2, 6], "video_start": [3, None]}
    assert times_in(read(folder, row, encoder), encoder) == pytest.approx([4.0, 0.5, 2.5, 4.5], abs=0.1)


# Pixels

SIZES = [
    ({"max_pixels": 256}, (8, 16)),
    ({"min_pixels": 4096}, (48, 88)),
    ({"min_pixels": "4096", "max_pixels": 9000.0}, (48, 88)),
    ({"resized_height": 30, "resized_width": 90}, (32, 88)),
    ({"resized_height": 64, "resized_width": 64, "max_pixels": None}, (64, 64)),
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("said", "size"), SIZES)
def test_an_image_has_the_pixels_that_its_part_says(
    said: dict[str, Any], size: tuple[int, int], name: str, folder: Path
) -> None:
    """They take the place of the limits of the run: of the image processor, and those of all images."""
    encoder = qwen(name, config=FamilyConfig(images=ImageLimits(max_pixels=1000)))
    batch = read(folder, image(**said), encoder).model_inputs()
    height, width = size
    assert batch["image_grid_thw"].tolist() == [[1, height // PATCH, width // PATCH]]
    image_id = encoder.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert int((batch["input_ids"] == image_id).sum()) == height * width // (PATCH * MERGE) ** 2
    picture = Image.open(folder / "wide.png").resize((width, height))
    exact = dict.fromkeys(("shortest_edge", "longest_edge"), height * width)
    expected = make_family(name).image_processor(images=[picture], size=exact, return_tensors="pt")["pixel_values"]
    assert torch.equal(batch["pixel_values"], torch.as_tensor(expected))


def test_each_image_of_a_row_has_its_own_settings(folder: Path) -> None:
    encoder = qwen("qwen2_5_vl")
    turns = [{"role": "user", "content": "<image> <image> <image>"}, ANSWER]
    grids = {"plain": [1, 8, 14], "small": [1, 2, 4], "square": [1, 16, 16]}
    square = {"image": "wide.png", "resized_height": 64, "resized_width": 64}
    row = {"messages": turns, "images": [{"path": "wide.png", "max_pixels": 256}, "wide.png", square]}
    got = read(folder, row, encoder).model_inputs()["image_grid_thw"].tolist()
    assert got == [grids["small"], grids["plain"], grids["square"]]
    row = {"messages": turns, "images": ["wide.png"] * 3, "max_pixels": [256, None, 256]}
    got = read(folder, row, encoder).model_inputs()["image_grid_thw"].tolist()
    assert got == [grids["small"], grids["plain"], grids["small"]]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("said", "size"),
    [
        ({"max_pixels": 600}, (16, 24)),
        ({"resized_height": 24, "resized_width": 40}, (24, 40)),
        ({"min_pixels": 3500, "max_pixels": 9000}, (56, 72)),
    ],
)
def test_the_frames_of_a_video_have_the_pixels_that_it_says(
    said: dict[str, int], size: tuple[int, int], name: str, folder: Path
) -> None:
    batch = read(folder, video(nframes=6, **said), qwen(name)).model_inputs()
    assert batch["video_grid_thw"].tolist() == [[3, size[0] // PATCH, size[1] // PATCH]]


# A video that is stored as pictures

FRAMES = [f"frames/{number}.png" for number in range(12)]
PLAIN = {"messages": [{"role": "user", "content": "what"}, ANSWER]}


@pytest.mark.parametrize(("name", "kind"), [*((name, "in place") for name in FAMILIES), ("qwen3_vl", "converted")])
@pytest.mark.parametrize(
    ("row", "fps"),
    [
        (asked({"type": "video", "video": FRAMES}), 2),
        (asked({"type": "video", "video": FRAMES, "sample_fps": "4"}), 4),
        (asked({"type": "video", "video": FRAMES, "fps": 1.0}), 1),
        (asked({"type": "video", "video": "frames", "sample_fps": 0.5}), 0.5),
        ({**PLAIN, "videos": FRAMES}, 2),
        ({**PLAIN, "videos": [FRAMES], "sample_fps": 4}, 4),
        ({**PLAIN, "video": FRAMES, "raw_fps": 30}, 2),
        ({**PLAIN, "videos": ["frames/"], "sample_fps": [8]}, 8),
        ({**PLAIN, "videos": [{"frames": [{"path": at} for at in FRAMES], "sample_fps": 8}]}, 8),
    ],
    ids=["part", "sample_fps", "fps", "folder", "list", "nested", "video", "folders", "item"],
)
def test_pictures_are_one_video_with_its_times(
    row: dict[str, Any], fps: float, kind: str, name: str, folder: Path, tmp_path: Path
) -> None:
    encoder = qwen(name)
    batch = read(folder, row, encoder)
    if kind == "converted":
        (batch,) = batches_of(converted(folder / "chat.jsonl", tmp_path / "made"), encoder)
    shown = torch.from_numpy(np.stack([frame(number) for number in range(12)])).permute(0, 3, 1, 2)
    assert_shows(batch, name, shown, [number / fps for number in range(12)], encoder)
    if name == "qwen2_5_vl":
        assert batch.model_inputs()["second_per_grid_ts"].tolist() == [2 / fps]


@pytest.mark.parametrize(
    ("said", "frames", "times"),
    [
        ({"times": [0, 1, 1.5, 9]}, [0, 1, 2, 3], [0, 1, 1.5, 9]),
        ({"timestamps": [3, 4, 5, 9], "nframes": 2}, [0, 3], [3, 9]),
        ({"times": [0, 1, 1.5, 9], "video_start": 1, "video_end": 2}, [1, 2], [1, 1.5]),
        ({"sample_fps": 4, "fps": 2, "min_frames": 2}, [0, 3], [0, 0.75]),
        ({"sample_fps": 4, "max_frames": 2}, [0, 3], [0, 0.75]),
        ({"sample_fps": 1, "video_start": 2}, [2, 3], [2, 3]),
    ],
)
def test_frames_may_have_their_own_times(
    said: dict[str, Any], frames: list[int], times: list[float], folder: Path
) -> None:
    encoder = qwen("qwen3_vl")
    batch = read(folder, asked({"type": "video", "video": FRAMES[:4], **said}), encoder)
    shown = torch.from_numpy(np.stack([frame(number) for number in frames])).permute(0, 3, 1, 2)
    assert_shows(batch, "qwen3_vl", shown, times, encoder)


@pytest.mark.parametrize("where", ["parts of a tar", "bytes in a table"])
def test_frames_are_stored_with_their_sample(where: str, folder: Path, tmp_path: Path) -> None:
    encoder, pictures = qwen("qwen3_vl"), [(folder / name).read_bytes() for name in FRAMES]
    turns = [{"role": "user", "content": "<video> what"}, ANSWER]
    if where == "bytes in a table":
        video = [{"bytes": picture, "path": None} for picture in pictures]
        pq.write_table(
            pa.table({"messages": [turns], "videos": [[video]], "sample_fps": [[4.0]]}), tmp_path / "a.parquet"
        )
        (batch,) = batches_of(tmp_path / "a.parquet", encoder)
    else:
        parts = {f"{number}.png": picture for number, picture in enumerate(pictures)}
        row = {"messages": turns, "videos": [list(parts)], "sample_fps": 4}
        write([{"__key__": "a", "json": row, **parts}], tmp_path / "tars", sample_type="CrudeWebdataset")
        (batch,) = batches_of(tmp_path / "tars", encoder)
    shown = torch.from_numpy(np.stack([frame(number) for number in range(12)])).permute(0, 3, 1, 2)
    assert_shows(batch, "qwen3_vl", shown, [number / 4 for number in range(12)], encoder)


def test_a_placeholder_of_an_image_may_stand_for_a_video_as_in_llava_video(folder: Path) -> None:
    encoder = qwen("qwen3_vl")
    turns = [{"from": "human", "value": "<image>\nwhat"}, {"from": "gpt", "value": "a boat"}]
    expected = read(folder, asked({"type": "video", "video": "clip.mp4"}), encoder)
    assert torch.equal(read(folder, {"conversations": turns, "video": "clip.mp4"}, encoder).tokens, expected.tokens)


@pytest.mark.parametrize("kind", ["in place", "converted"])
def test_a_gif_that_is_a_video_is_no_image(kind: str, folder: Path, tmp_path: Path) -> None:
    encoder = qwen("qwen3_vl")
    first, *rest = (Image.fromarray(frame(number)) for number in range(6))
    first.save(folder / "moving.gif", save_all=True, append_images=rest, duration=500)
    batch = read(folder, {**PLAIN, "video": "moving.gif"}, encoder)
    if kind == "converted":
        (batch,) = batches_of(converted(folder / "chat.jsonl", tmp_path / "made"), encoder)
    assert times_in(batch, encoder) == pytest.approx([0.2, 1.2, 2.2], abs=0.1)


def test_each_frame_may_say_its_time(folder: Path) -> None:
    encoder = qwen("qwen3_vl")
    frames = [{"path": name, "time": 2.0 * number, "width": 64} for number, name in enumerate(FRAMES[:4])]
    for row in ({**PLAIN, "videos": [frames]}, asked({"type": "video", "frames": frames})):
        assert times_in(read(folder, row, encoder), encoder) == [1, 5]


def test_frames_are_bounded_by_the_run_and_their_rate_is_of_the_video(folder: Path) -> None:
    encoder = qwen("qwen3_vl", sampling=VideoSampling(max_frames=4, default_fps=24))
    row = {**TWO, "videos": [FRAMES, FRAMES[:4]], "sample_fps": [1, 10]}
    assert times_in(read(folder, row, encoder), encoder) == pytest.approx([2, 9, 0, 0.2], abs=0.1)


def test_a_sample_made_in_python_has_settings_too() -> None:
    encoder = qwen("qwen3_vl")
    pictures = [frame(number) for number in range(4)]
    frames = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    sources = (pictures, [png(Image.fromarray(one)) for one in pictures], frames)
    talk = [{"role": "user", "content": "<video>"}, ANSWER]
    made = []
    for source in sources:
        visual = Visual(source, VisualSettings(sample_fps=2, nframes=4))
        made.append(encode(encoder, VideoConversationSample(__key__="v", messages=talk, videos=[visual])))
    for one in made:
        assert torch.equal(one.tokens, made[0].tokens)
        assert torch.equal(one.media["pixel_values_videos"], made[0].media["pixel_values_videos"])


# What is refused

MIXED = {"messages": [{"role": "user", "content": "<video> <video> <video> <video>"}, ANSWER]}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (video(nframes=400), "nframes=400"),
        (video(nframes=1), "nframes=1"),
        (video(fps=1, nframes=4), "nframes=4"),
        (video(fps=0), "fps=0"),
        (video(fps="fast"), "'fast'"),
        (video(fps=True), "fps=True"),
        (video(nframes=2.5), "nframes=2.5"),
        (video(video_start=4, video_end=2), "video_start=4"),
        (video(video_start=7), "video_start=7"),
        (video(resized_height=32), "resized_width"),
        (video(sample_fps=2), "sample_fps"),
        (video(times=[0, 1]), "times"),
        (video(start=1, end=2), "'start'"),
        (video(num_frames=8), "'num_frames'"),
        ({**PLAIN, "video": "clip.mp4", "start_time": 3}, "'start_time'"),
        ({**PLAIN, "video": "clip.mp4", "start_frame": 3}, "'start_frame'"),
        ({**PLAIN, "video": "clip.mp4", "timeRange": [1, 2]}, "'timeRange'"),
        ({**PLAIN, "video": "clip.mp4", "begin_time": 1.0}, "'begin_time'"),
        ({**PLAIN, "video": "clip.mp4", "frame_idx": [0, 4]}, "'frame_idx'"),
        ({**PLAIN, "video": "clip.mp4", "max_num_frames": 8}, "'max_num_frames'"),
        ({**PLAIN, "video": "clip.mp4", "use_audio_in_video": True}, "'use_audio_in_video'"),
        (video(clip=[1, 2]), "'clip'"),
        ({**PLAIN, "videos": ["clip.mp4"], "fps": [1, 2]}, "'fps'"),
        (image(min_pixels=100, max_pixels=50), "min_pixels=100"),
        (image(fps=2), "fps=2"),
        # a picture is no video, and frames are of one size
        (asked({"type": "video", "video": "wide.png"}), "wide.png"),
        ({**PLAIN, "video": "wide.png"}, "wide.png"),
        ({**PLAIN, "videos": ["wide.png"]}, "wide.png"),
        ({**PLAIN, "videos": ["clip.mp4", "wide.png"]}, "wide.png"),
        ({**MIXED, "videos": FRAMES[:4]}, "1 videos"),
        ({**PLAIN, "videos": [[*FRAMES[:3], "wide.png"]]}, "frame 4"),
        (asked({"type": "video", "video": FRAMES[:3], "times": [0, 1]}), "times"),
        (asked({"type": "video", "video": FRAMES[:3], "times": [0, 2, 1]}), "times"),
        (asked({"type": "video", "video": "missing/folder"}), "missing/folder"),
        (asked({"type": "video", "video": [{"path": FRAMES[0], "time": 1}, {"path": FRAMES[1]}]}), "times"),
        (asked({"type": "video", "video": [{"path": at, "crop": [0, 0, 9, 9]} for at in FRAMES]}), "'crop'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(row: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(SampleError) as error:
        read(folder, row, qwen("qwen3_vl"))
    assert told in str(error.value) and "sample '0'" in str(error.value)


@pytest.mark.parametrize("family", CASES)
@pytest.mark.parametrize("said", [{"max_pixels": 256}, {"resized_height": 32, "resized_width": 32}])
def test_a_family_that_cannot_honour_a_setting_names_it(family: str, said: dict[str, int], folder: Path) -> None:
    made = CASES[family].make()
    encoder = FamilyTaskEncoder(make_tokenizer(template=made.chat_template), made, seq_length=8192)
    assert read(folder, image(), encoder).media
    with pytest.raises(SampleError, match=f"max_pixels=256|resized_height=32.*{type(made).__name__}"):
        read(folder, image(**said), encoder)


def test_a_row_with_a_picture_as_a_video_is_broken_for_convert(folder: Path, tmp_path: Path) -> None:
    row = {**PLAIN, "video": "wide.png"}
    (folder / "still.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(AssertionError, match=r"wide\.png"):
        converted(folder / "still.jsonl", tmp_path / "made")
