from pathlib import Path

import pytest

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.errors import DatasetError
from bridge_data.samples import CaptioningSample, VQASample
from recipes import demo_data
from recipes.demo_data import DemoDataConfig, crops, find_photos, make_demo_data


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="pip install scikit-image"):
        find_photos()


def test_a_crop_is_a_function_of_its_number() -> None:
    few, many = list(crops(5, seed=3)), list(crops(12, seed=3))
    assert [crop.caption for crop in few] == [crop.caption for crop in many[:5]]
    assert [crop.image.tobytes() for crop in few] == [crop.image.tobytes() for crop in many[:5]]
    assert [crop.caption for crop in crops(5, seed=4)] != [crop.caption for crop in few]


def test_two_prepared_data_sets_are_blended(tmp_path: Path) -> None:
    config = DemoDataConfig(num_captions=20, num_questions=20, samples_per_shard=5)
    blend = make_demo_data(tmp_path / "data", config)
    dataset = get_train_dataset(
        blend,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        repeat=False,
    )
    samples = [sample for sample, _ in zip(get_savable_loader(dataset), range(20), strict=False)]
    assert {type(sample) for sample in samples} == {CaptioningSample, VQASample}
    for sample in samples:
        assert sample.image.shape[0] == 3
        kind = "caption" if isinstance(sample, CaptioningSample) else "question"
        assert sample.__subflavors__ == {"task": kind}
        assert f"/{kind}0" in sample.__key__
    questions = [sample for sample in samples if isinstance(sample, VQASample)]
    assert all(sample.answers and sample.context.endswith("?") for sample in questions)


def test_data_of_other_settings_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(demo_data, "_bridge_data", lambda *arguments: commands.append(arguments[0]))
    for num_captions in (10, 4, 4):
        make_demo_data(tmp_path / "data", DemoDataConfig(num_captions=num_captions, num_questions=3))
        assert len(list((tmp_path / "data/captions/raw").glob("*.jpg"))) == num_captions
    assert commands == ["convert", "convert"] * 2
