"""Opens tokenizers and processors by a folder or a hub id; the only module that calls `from_pretrained`.

Reads a class of transformers, and a folder that `save_pretrained` wrote or an id of the hub. Returns the object. Code
in the folder (`auto_map`) never runs: who trusts it passes the object. The name of a folder is never looked up on the
hub, and without a network the error is immediate.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError

_CONFIG_FILES = ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json", "config.json")

_CONNECT_TIMEOUT_S = 5.0


def open_tokenizer(given: Any) -> Any:
    """The tokenizer in the folder or with the hub id `given`; an object is returned unchanged.

    Raises:
        ConfigError: if there is none, or it cannot be read without running code in its folder.
    """
    return _open("AutoTokenizer", "tokenizer", given)


def open_image_processor(given: Any) -> Any:
    """The image processor in the folder or with the hub id `given`; an object is returned unchanged.

    Raises:
        ConfigError: if there is none, if it needs code in its folder, or if it is a number, as a call by position for
            Megatron-Bridge 0.6 gives.
    """
    if isinstance(given, int):
        raise ConfigError(
            f"image_processor={given}: expected an image processor, or its folder; Megatron-Bridge 0.6 has no such "
            "argument and takes seq_length in its place: pass seq_length and all that follows by name"
        )
    return _open("AutoImageProcessor", "image_processor", given)


def open_processor(given: Any) -> Any:
    """The processor in the folder or with the hub id `given`; an object is returned unchanged.

    Raises:
        ConfigError: if there is none, or it cannot be read without running code in its folder.
    """
    return _open("AutoProcessor", "processor", given)


def open_model_config(given: Any, *, needed: bool) -> Any:
    """The config of the model in the folder or with the hub id `given`; an object is returned unchanged if it is
    `needed`, and None if not; so is a folder without a config.

    Raises:
        ConfigError: if one is needed, and there is none, or it cannot be read without running code in its folder.
    """
    if needed:
        return _open("AutoConfig", "model_config", given)
    with contextlib.suppress(ConfigError):
        return _open("AutoConfig", "model_config", given) if isinstance(given, str | Path) else None
    return None


def _open(auto_class: str, setting: str, given: Any) -> Any:
    """What this class of transformers reads from the folder or hub id `given`; errors name `setting`. An object is
    returned unchanged."""
    if not isinstance(given, str | Path):
        return given
    import transformers

    name = os.path.expanduser(os.fspath(given))
    what = f"{setting}={os.fspath(given)!r}"
    is_folder = os.path.isdir(name)
    if not is_folder and _is_path(given, name):
        raise ConfigError(f"{what}: no such folder; expected one that save_pretrained wrote, or an id of the hub")
    offline = is_folder or not _hub_answers()
    options = {"local_files_only": True} if offline else {}
    try:
        return getattr(transformers, auto_class).from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # reading a damaged file may raise anything
        reason = _needs_code(Path(name)) if is_folder else None
        if reason is None and "trust_remote_code" in str(error):
            reason = f"{what}: it brings code of its own, which is not run"
        if reason is not None:
            raise ConfigError(
                f"{reason}. Read that code first; if you trust it, load the object yourself, with "
                f"transformers.{auto_class}.from_pretrained(..., trust_remote_code=True), and pass it"
            ) from error
        if is_folder:
            where = "such a folder"
        elif offline:
            where = "the cache of this machine under such an id, and the hub cannot be reached"
        else:
            where = "such a folder, or on the hub under such an id"
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"{what}: transformers.{auto_class} finds none in {where}: {reason}") from error


def _is_path(given: str | os.PathLike[str], name: str) -> bool:
    """Whether a name can only mean a (missing) folder: an id of the hub is `name` or `owner/name`."""
    if isinstance(given, os.PathLike) or os.path.isabs(name) or os.path.exists(name):
        return True
    return name.startswith((".", "~")) or name.endswith("/") or name.count("/") > 1


def _hub_answers() -> bool:
    """Whether the hub can be reached, as huggingface_hub would: through its proxies, and never with `HF_HUB_OFFLINE`.
    transformers tries five times per file, for a minute, to find out."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_CONNECT_TIMEOUT_S)
    except Exception:  # each release of huggingface_hub has an HTTP library with errors of its own
        return False
    return True


def _needs_code(folder: Path) -> str | None:
    """Which file of `folder` names code next to it, for messages; None if none does."""
    for name in _CONFIG_FILES:
        path = folder / name
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        code = content.get("auto_map") if isinstance(content, dict) else None
        if code:
            shown = ", ".join(map(str, code.values())) if isinstance(code, dict) else str(code)
            return f"{path}: its auto_map names code beside it, which is not run: {shown[:200]}"
    return None
