import io
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import bridge_data
from bridge_data import ConfigError
from bridge_data.configs import DataConfig
from bridge_data.encoders import Idefics3, InternVL, Llava, MultiModalTaskEncoder, Qwen2VL
from bridge_data.encoders.pretrained import open_image_processor, open_tokenizer
from tests.encoders import multimodal_parts
from tests.encoders.multimodal_parts import CONFIG, image_processor
from tests.encoders.parts import make_tokenizer

CODE = "open({marker!r}, 'w').close()\nclass Hostile: pass\n"


def hostile_folder(folder: Path, file: str, auto_class: str) -> Path:
    """A folder whose `file` names code beside it, which writes the file `ran`."""
    folder.mkdir()
    names: Any = ["hostile.Hostile", None] if auto_class == "AutoTokenizer" else "hostile.Hostile"
    content: dict[str, Any] = {"auto_map": {auto_class: names, "AutoConfig": "hostile.Hostile"}, "model_type": "x"}
    (folder / file).write_text(json.dumps(content))
    (folder / "hostile.py").write_text(CODE.format(marker=str(folder / "ran")))
    return folder


@pytest.mark.parametrize(
    ("file", "auto_class", "open_it"),
    [
        ("tokenizer_config.json", "AutoTokenizer", open_tokenizer),
        ("preprocessor_config.json", "AutoImageProcessor", open_image_processor),
        ("processor_config.json", "AutoImageProcessor", open_image_processor),
        ("tokenizer_config.json", "AutoTokenizer", lambda path: DataConfig(path=[], tokenizer=path).build()),
        ("preprocessor_config.json", "AutoImageProcessor", lambda path: Llava(path, 14)),
        ("preprocessor_config.json", "AutoImageProcessor", Idefics3),
        ("preprocessor_config.json", "AutoImageProcessor", InternVL),
        ("preprocessor_config.json", "AutoImageProcessor", Qwen2VL),
    ],
)
def test_code_in_a_folder_is_not_run_even_if_stdin_says_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, auto_class: str, open_it: Any
) -> None:
    folder = hostile_folder(tmp_path / "model", file, auto_class)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 10))
    with pytest.raises(ConfigError, match=rf"{file}: its auto_map names code beside it.*hostile\.Hostile"):
        open_it(str(folder))
    assert not (folder / "ran").exists()


def test_a_folder_with_a_map_to_code_that_is_not_needed_is_read(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": {"AutoTokenizer": ["a.B", "a.C"]}}))
    assert open_tokenizer(tmp_path).get_vocab()


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "a/b/c", "~/none", "none/", Path("none")])
def test_a_missing_folder_is_not_looked_for_on_the_hub(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConfigError, match=r"tokenizer=.*: no such folder"):
        open_tokenizer(name)


def test_without_a_network_an_id_of_the_hub_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"tokenizer='bridge-data-tests/none': .* the hub cannot be reached"):
        open_tokenizer("bridge-data-tests/none")
    assert time.monotonic() - begin < 30


def test_offline_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ConfigError, match="the hub cannot be reached"):
            open_tokenizer("bridge-data-tests/none")
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    multimodal_parts.make_tokenizer().save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


def equal(tokenizer: Any, processor: Any) -> bool:
    expected = multimodal_parts.make_tokenizer()
    same = tokenizer.get_vocab() == expected.get_vocab() and processor.to_dict() == image_processor().to_dict()
    return same and tokenizer.chat_template == expected.chat_template


def test_what_a_folder_holds_is_opened(saved: Path) -> None:
    assert equal(open_tokenizer(saved), open_image_processor(str(saved)))
    tokenizer = multimodal_parts.make_tokenizer()
    assert open_tokenizer(tokenizer) is tokenizer
    assert (open_tokenizer(None), open_image_processor(None)) == (None, None)


def test_encoder_and_datamodule_take_names(saved: Path) -> None:
    encoder = MultiModalTaskEncoder(str(saved), saved, CONFIG)
    module = bridge_data.EnergonMultiModalDataModule("data", str(saved), saved, multimodal_sample_config=CONFIG)
    for holder in (encoder, module, module.task_encoder):
        assert equal(holder.tokenizer, holder.image_processor)


@pytest.mark.parametrize(
    ("name", "told"), [("missing", "no such folder"), ("empty", r"transformers\.Auto\w+ finds none in such a folder")]
)
def test_a_folder_without_one_is_named(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    folder = tmp_path / name
    with pytest.raises(ConfigError, match=rf"^tokenizer='{folder}': {told}"):
        open_tokenizer(folder)
    with pytest.raises(ConfigError, match=rf"^image_processor='{folder}': {told}"):
        open_image_processor(folder)
