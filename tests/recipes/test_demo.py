"""The demo's data, tokenizer, encoder and plan; `tests/e2e/test_demo.py` runs it."""

from pathlib import Path

import pytest
import torch

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.encoders import FamilyTaskEncoder, Llava
from bridge_data.errors import DatasetError, SkipSample
from bridge_data.samples import CaptioningSample, VQASample
from recipes.demo import photos
from recipes.demo.__main__ import RESUMES, Demo, main
from recipes.demo.photos import DemoDataConfig, find_photos, make_demo_data
from recipes.demo.skipping import SkippingTaskEncoder
from recipes.demo.tokenizer import END, IMAGE, PAD, START, train_tokenizer
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer


@pytest.mark.parametrize("num_steps", [16, 17, 23, 40, 100])
def test_the_kill_falls_between_saves_in_the_middle_of_the_run(tmp_path: Path, num_steps: int) -> None:
    demo = Demo(tmp_path, num_steps, [run.name for run in RESUMES])
    steps_done = demo.kill_after_step
    assert demo.save_interval < steps_done < num_steps - demo.save_interval
    assert 0 < steps_done % demo.save_interval < demo.save_interval - 1, "there must be room for a late SIGKILL"


def test_too_few_steps_and_a_missing_package_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "15"])
    assert "expected at least 16" in capsys.readouterr().err
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="pip install scikit-image"):
        find_photos()


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


def sample(key: str) -> CaptioningSample:
    return CaptioningSample(__key__=key, image=torch.zeros(3, 40, 48), caption="a grey crop of the cat")


def test_it_leaves_out_one_sample_and_is_that_of_the_other_runs_for_all_others() -> None:
    parts = tiny_tokenizer("llava"), Llava(tiny_image_processor("llava"), 4)
    plain, encoder = (
        FamilyTaskEncoder(*parts, seq_length=256),
        SkippingTaskEncoder(*parts, seq_length=256, skipped_key="shard/b"),
    )
    assert torch.equal(encoder.preencode_sample(sample("shard/a")).tokens, plain.preencode_sample(sample("s/a")).tokens)
    with pytest.raises(SkipSample):
        encoder.preencode_sample(sample("shard/b"))


def test_the_same_texts_give_the_same_tokenizer_which_marks_what_the_assistant_says(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["a grey crop of the cat", "a red crop of the moon", "what is the main colour?"]
    for name, order in (("one", texts), ("two", texts[::-1])):
        train_tokenizer(order, tmp_path / name, vocab_size=320)
    assert (tmp_path / "one/tokenizer.json").read_text() == (tmp_path / "two/tokenizer.json").read_text()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one", local_files_only=True)
    assert tokenizer.convert_tokens_to_ids([PAD, IMAGE, START, END]) == [0, 1, 2, 3]
    chat = [{"role": "user", "content": f"{IMAGE}{IMAGE}what?"}, {"role": "assistant", "content": "the cat"}]
    encoded = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    answered = [t for t, mine in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mine]
    assert tokenizer.decode(answered) == f"the cat{END}"
    assert encoded["input_ids"].count(1) == 2
