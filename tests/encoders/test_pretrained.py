from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, EnergonMultiModalDataModule
from bridge_data.encoders import MultiModalTaskEncoder
from bridge_data.encoders.pretrained import open_image_processor, open_tokenizer
from tests.encoders.multimodal_parts import CONFIG, image_processor, make_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    make_tokenizer().save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


def equal(tokenizer: Any, processor: Any) -> bool:
    same = tokenizer.get_vocab() == make_tokenizer().get_vocab() and processor.to_dict() == image_processor().to_dict()
    return same and tokenizer.chat_template == make_tokenizer().chat_template


def test_what_a_folder_holds_is_opened(saved: Path) -> None:
    assert equal(open_tokenizer(saved), open_image_processor(str(saved)))


def test_what_is_no_name_stays_as_it_is() -> None:
    tokenizer = make_tokenizer()
    assert open_tokenizer(tokenizer) is tokenizer
    assert (open_tokenizer(None), open_image_processor(None)) == (None, None)


def test_encoder_and_datamodule_take_names(saved: Path) -> None:
    encoder = MultiModalTaskEncoder(str(saved), saved, CONFIG)
    module = EnergonMultiModalDataModule("data", str(saved), saved, multimodal_sample_config=CONFIG)
    for holder in (encoder, module, module.task_encoder):
        assert equal(holder.tokenizer, holder.image_processor)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_one_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    folder = tmp_path / name
    with pytest.raises(ConfigError, match=rf"tokenizer='{folder}': transformers.AutoTokenizer finds none"):
        open_tokenizer(folder)
    with pytest.raises(ConfigError, match=rf"image_processor='{folder}': transformers.AutoImageProcessor finds none"):
        open_image_processor(folder)
