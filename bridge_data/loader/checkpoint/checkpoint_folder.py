"""Checkpoint folders: saved by one process, or by all data-parallel ranks together; loaded by anyone.

    iter_0000010/
      train_dataloader_dprank000.pt       the checkpoint: the state of the whole job, and its step
      train_dataloader_dprank001.pt ...   copies of the lanes of each further rank

Writes the states of the ranks and the step to such a folder, on a disk or in an object store. Reads a path or URL, and
returns one merged state. The file of rank 0 is replaced atomically and is all that a load reads, so a save that is
interrupted at any moment leaves the previous checkpoint or the new one; one that returns has saved the same step of the
same run on every rank. What is loaded is what was saved, by the checksums of the state, or an error that names the
file. Nothing in a file is executed.

The other files are for trainers in which each rank reads a file of its own, and must have one; the names and the key
are those of Megatron-LM and Megatron-Bridge. Folders of these (a file a rank, with the state alone) are read if their
files agree and make a whole state.
"""

import contextlib
import dataclasses
import functools
import io
import operator
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, StateError, listed
from bridge_data.loader.checkpoint.lightning_file import LIGHTNING_SUFFIX, read_lightning
from bridge_data.loader.rank_states import by_first_rank, described, gather_objects, rank_names
from bridge_data.order.state import FORMAT as STATE_FORMAT
from bridge_data.order.state import LoaderState, merge, parse_state
from bridge_data.storage import AnyLocation, Location
from bridge_data.storage.atomic import sync_folder
from bridge_data.topology import rank_in

if TYPE_CHECKING:
    import torch.distributed as dist

FORMAT = "bridge_data.checkpoint"
"""The name of the format in files: part of the format, it does not follow this module's name."""
VERSION = 2
"""The version of the format."""

STATE_KEY = "dataloader_state_dict"
"""Where the state is in the file. Source: Megatron-LM and Megatron-Bridge, `maybe_save_dataloader_state`."""

_NAME = re.compile(r"train_dataloader_dprank(\d{3,})\.pt")
ITERATION = re.compile(r"iter_(\d{7,})")
LATEST = "latest_checkpointed_iteration.txt"
"""Megatron's names for the folder of a checkpoint, and for the file beside them that says which is the newest."""

_HALF_WRITTEN = ".*train_dataloader_*.tmp"
"""What earlier saves may have left."""

_NUM_TRIES = 3
"""How often a folder is read while saves replace its files."""


def rank_file(folder: AnyLocation, rank: int) -> AnyLocation:
    """The path of a rank's file, as Megatron-LM names it."""
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


def rank_files(folder: Location) -> dict[str, Location]:
    """All files of ranks in `folder` by name, in the order of the ranks."""
    found = (match for name in _names_in(folder) if (match := _NAME.fullmatch(name)))
    return {match[0]: folder / match[0] for match in sorted(found, key=lambda match: int(match[1]))}


def _names_in(folder: Location) -> list[str]:
    if isinstance(folder, Path):
        return os.listdir(folder)
    return [name for name in storage.list_sizes(str(folder)) if "/" not in name]


def holds_state(folder: Location) -> bool:
    """Whether there is a data state in `folder`, or a part of one."""
    return folder.is_dir() and bool(rank_files(folder))


def save_states(
    folder: str | os.PathLike[str],
    states: dict[str, Any] | Sequence[dict[str, Any]],
    *,
    step: int,
    world_size: int,
) -> None:
    """Save one whole state, or the states of all ranks in any order, as a checkpoint of `world_size` ranks in `folder`,
    a path or the URL of an object store.

    The file of rank 0 holds the whole state, the others the lanes of their rank. An earlier save in `folder` is
    replaced: a save that is killed or fails leaves one or the other.

    >>> from bridge_data import InMemoryDataset, TextSample, get_savable_loader
    >>> texts = InMemoryDataset([TextSample(__key__=text, text=text) for text in ("a", "b", "c")], training=False)
    >>> loader = get_savable_loader(texts.build())
    >>> next(iter(loader)).text
    'a'
    >>> save_states("checkpoint", loader.save_state_rank(), step=1, world_size=1)
    >>> resumed = get_savable_loader(texts.build())
    >>> resumed.restore_state_rank(load_states("checkpoint", step=1))
    >>> next(iter(resumed)).text
    'b'

    Raises:
        ConfigError: if `folder` is in a store that cannot be written.
        StateError: if the states do not make a whole one, or the folder cannot be written.
    """
    if world_size < 1:
        raise ConfigError(f"save_states(world_size={world_size}): expected at least 1")
    target = storage.output("save_states: folder", folder)
    state = merge([parse_state(state) for state in ([states] if isinstance(states, dict) else states)])
    try:
        _write(target, state, operator.index(step), world_size)
    except (OSError, DatasetError) as error:
        raise StateError(f"{folder}: the data state was not saved: {error}") from error


def save_rank_state(
    folder: str | os.PathLike[str], state: dict[str, Any], *, step: int, group: "dist.ProcessGroup | None" = None
) -> None:
    """Save the state of this rank of the data-parallel `group`, as `save_states`; all its ranks call it.

    `state` is the rank's own or a whole one; if that of rank 0 is whole, it is kept unchanged. Rank 0 gathers the
    states and writes. If tensor-, context- or pipeline-parallel processes share a data-parallel rank, those with rank 0
    in all of these call it, as in Megatron. On return the checkpoint is complete.

    Raises:
        ConfigError: if `folder` is in a store that cannot be written.
        StateError: on every rank, if the state cannot be written or one of them is at another step; what was saved
            before is still there, unless the new one is complete.
    """
    target, (rank, world_size) = storage.output("save_rank_state: folder", folder), rank_in(group)
    of_ranks = gather_objects(_given(state, step, rank, world_size), group)
    try:
        by_first_rank(lambda: _write(target, *_agreed(of_ranks or []), world_size), group)
    except StateError as error:
        raise StateError(f"{target}: the data state was not saved:\n  {error}") from error


def _given(state: dict[str, Any], step: int, rank: int, world_size: int) -> tuple[LoaderState, int] | str:
    """What a rank has to save, its state and step; or why it has nothing."""
    try:
        own = parse_state(state)
        return own if rank == 0 and own.is_whole else own.of_rank(rank, world_size), operator.index(step)
    except Exception as error:  # of any kind: the other ranks wait for this one
        return f"rank {rank}: {described(error)}"


def _agreed(of_ranks: Sequence[tuple[LoaderState, int] | str]) -> tuple[LoaderState, int]:
    """The whole state and the step of all ranks."""
    problems = [given for given in of_ranks if isinstance(given, str)]
    if problems:
        more = [f"and {len(problems) - 4} more ranks"] if len(problems) > 4 else []
        raise StateError("\n  ".join(problems[:4] + more))
    states, steps = zip(*(given for given in of_ranks if not isinstance(given, str)), strict=True)
    for rank, step in enumerate(steps):
        if step != steps[0]:
            raise StateError(
                f"data-parallel rank {rank} saves step {step}, rank 0 step {steps[0]}. Save after the same number of "
                "batches on every rank"
            )
    merged = merge(states, rank_names(states))
    return (states[0] if states[0].is_whole else merged), steps[0]


def _write(target: Location, state: LoaderState, step: int, world_size: int) -> None:
    """Write the file of rank 0, which replaces the checkpoint in `target`; then the copies; remove what is older."""
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    _check_replaceable(rank_file(target, 0))
    storage.write(rank_file(target, 0), encoded(state, step=step, rank=0, world_size=world_size))
    names = {rank_file(target, rank).name for rank in range(world_size)}
    copies = [rank_file(target, rank) for rank in range(1, world_size)]
    for rank, path in enumerate(copies, 1):
        copy = encoded(state.of_rank(rank, world_size), step=step, rank=rank, world_size=world_size)
        storage.write(path, copy, durable=False)
    for name, path in rank_files(target).items():
        if name not in names:
            storage.delete(path)
    if isinstance(target, Path):
        _settle(target, copies)


def _settle(target: Path, copies: Sequence[Location]) -> None:
    """Wait until the copies are on the disk, and remove what earlier saves have left."""
    for path in copies:  # all are on their way to the disk by now
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for left in [*target.glob(_HALF_WRITTEN)]:
        left.unlink(missing_ok=True)
    sync_folder(target)


def _check_replaceable(file: Location) -> None:
    """Refuse to replace a checkpoint of a later format."""
    try:
        content = _content(storage.read_all(file))
    except Exception:  # there is none, or it is damaged
        return
    if isinstance(content, dict) and content.get("format") == FORMAT:
        _check_version(content.get("version"), file)


def _check_version(version: object, file: Location) -> None:
    if version != VERSION:
        raise StateError(
            f"{file}: got version {version} of the file format, expected {VERSION}; "
            "read it with the release that wrote it"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """What a path holds: the state; step and world size, None if the files do not say; number of files and bytes."""

    path: Location
    state: LoaderState
    step: int | None
    world_size: int | None
    num_files: int
    num_bytes: int


def load_states(folder: str | os.PathLike[str], *, step: int | None = None) -> dict[str, Any]:
    """The state of the whole job, merged from the files in `folder`, a path or URL: `loader.restore_state_rank` takes
    it on every rank of a job of any size. If many ranks would read many files, let one read them and share the state by
    `loader.restore_state_global(state, src_rank=...)`.

    Args:
        step: the expected step.

    Raises:
        StateError: naming the file, if the folder is not complete, or not of one step and run.
    """
    found = _read_folder(storage.location(folder))
    if step not in (None, found.step):
        of = "a step that it does not say" if found.step is None else f"step {found.step}"
        raise StateError(
            f"{folder}: got the data state of {of}, expected that of step {step}. "
            "Load model and data of the same step; if this is what you want, load it without a step."
        )
    return found.state.to_dict()


def read_checkpoint(path: str | os.PathLike[str], keys: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint in a folder, or the state in one file (`.ckpt` of Lightning too), maybe of one rank only. `keys`
    say where a file has it among other things: the key in its dict, then that in the dict there, and so on.

    Raises:
        StateError: as `load_states`, or if there is nothing under the keys.
    """
    path = storage.location(path)
    if not path.is_file():
        if keys and path.is_dir():
            raise StateError(f"{path}: is a folder, and has no key {'.'.join(keys)!r}: give a file")
        return _read_folder(path)
    if path.suffix == LIGHTNING_SUFFIX and not keys:
        state, step = read_lightning(storage.on_disk(path))
        size = storage.size_bytes(path)
        return Checkpoint(path=path, state=state, step=step, world_size=None, num_files=1, num_bytes=size)
    data = read_bytes(path)
    file = decoded(data, path, keys)
    return Checkpoint(
        path=path, state=file.state, step=file.step, world_size=file.world_size, num_files=1, num_bytes=len(data)
    )


def _read_folder(folder: Location) -> Checkpoint:
    """What is in a folder. A save may replace its files meanwhile; it begins with that of rank 0."""
    if not folder.is_dir():
        raise StateError(f"{folder}: {'expected a folder' if folder.exists() else 'no such file or folder'}")
    first, num_tries = rank_file(folder, 0), 0
    while True:
        data = read_if_saved(first)
        try:
            return _read_with(folder, data)
        except (OSError, DatasetError, StateError) as error:
            num_tries += 1
            if num_tries < _NUM_TRIES and read_if_saved(first) != data:
                continue
            if isinstance(error, OSError):
                raise StateError(f"{folder}: cannot be read: {error.strerror or error}") from error
            raise


def _read_with(folder: Location, data: bytes | None) -> Checkpoint:
    """What is in a folder whose file of rank 0 has the content `data`."""
    first = rank_file(folder, 0)
    file = None if data is None else decoded(data, first)
    if file is not None and file.version is not None:
        if not file.state.is_whole:
            raise StateError(f"{first}: is the file of rank {file.rank}; expected that of rank 0, with the whole state")
        sizes = []
        for path in rank_files(folder).values():
            with contextlib.suppress(DatasetError):  # a save that goes on removes older ones
                sizes.append(storage.size_bytes(path))
        return Checkpoint(
            path=folder,
            state=file.state,
            step=file.step,
            world_size=file.world_size,
            num_files=len(sizes),
            num_bytes=sum(sizes),
        )
    contents = {name: read_bytes(path) for name, path in rank_files(folder).items()}
    if not contents:
        raise StateError(_nothing_in(folder))
    files = {name: decoded(data, folder / name) for name, data in contents.items()}
    _check_foreign(folder, files)
    named = ITERATION.fullmatch(folder.absolute().name)
    return Checkpoint(
        path=folder,
        state=_merged(folder, {name: file.state for name, file in files.items()}),
        step=int(named[1]) if named else None,
        world_size=len(files),  # Megatron writes one for each rank
        num_files=len(files),
        num_bytes=sum(map(len, contents.values())),
    )


def _nothing_in(folder: Location) -> str:
    first = rank_file(Path(), 0).name
    if not isinstance(folder, Path):
        return f"{folder}: holds no data state: expected {first}. Give the folder of one iteration."
    below = sorted(path.parent for path in folder.glob(f"*/{first}"))
    hint = f"There is one in {below[-1]}: give that folder." if below else "Give the folder of one iteration."
    if any(folder.glob(_HALF_WRITTEN)):
        hint = "A save was cut short before it was complete. Take another checkpoint."
    if any(folder.glob("*.distcp")):
        hint = "A state in a checkpoint of megatron.core.dist_checkpointing is read by load_sharded_state, in a job."
    return f"{folder}: holds no data state: expected {first}. {hint}"


def _check_foreign(folder: Location, files: "Mapping[str, StateFile]") -> None:
    """Refuse files of ours without the one that completes them: nothing says that they belong together."""
    for name, file in files.items():
        if file.version is not None:
            missing = f"the {rank_file(Path(), 0).name} that was saved with it"
            raise StateError(
                f"{folder}: {name} is a part of the checkpoint that {file.world_size} ranks saved at step {file.step}, "
                f"but {missing} is missing: it was copied without that, or before the save had ended. "
                "Copy the whole folder again, or take another checkpoint."
            )


def _merged(folder: Location, states: Mapping[str, LoaderState]) -> LoaderState:
    try:
        return merge([*states.values()], [*states])
    except StateError as error:
        raise StateError(
            f"{folder}: {', '.join([*states][:8])} do not make one whole state: {error}. Add files that are missing, "
            "or take another checkpoint"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """A file's content. Version, step, rank and world size are None in a file that others wrote, without them."""

    state: LoaderState
    version: int | None = None
    step: int | None = None
    rank: int | None = None
    world_size: int | None = None


def encoded(state: LoaderState, *, step: int, rank: int, world_size: int) -> bytes:
    """The content of a rank's file."""
    content = {STATE_KEY: state.to_dict(), "format": FORMAT, "version": VERSION}
    buffer = io.BytesIO()
    torch.save(content | {"step": step, "rank": rank, "world_size": world_size}, buffer)
    return buffer.getvalue()


def decoded(data: bytes, path: Location, keys: Sequence[str] = ()) -> StateFile:
    """The content of a file, or what it has under `keys`: ours, Megatron's, or a bare state as
    `loader.save_state_rank()` and the like return it, or a list of these."""
    damaged = StateError(
        f"{path}: cannot be read as a data state, which is plain data written by torch.save: the file is damaged, "
        "or holds objects (as Energon's states do), which are not loaded. Copy it again from where it was saved, "
        "or take another checkpoint."
    )
    try:
        content = _content(data)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise damaged from error
    content = functools.reduce(lambda inner, key: inner[_key_in(inner, key, path)], keys, content)
    is_wrapped = isinstance(content, dict) and STATE_KEY in content
    is_ours = is_wrapped and content.get("format") == FORMAT
    if is_ours:
        _check_version(content.get("version"), path)
    if (found := _keys_of_state(content)) is not None:
        inside = "".join(f"[{key!r}]" for key in (*keys, *found))
        raise StateError(
            f"{path}: has a data state in {inside}, among other things: give `bridge-data checkpoint` --key "
            f"{'.'.join(map(str, (*keys, *found)))}, or load_states what torch.load({str(path)!r}){inside} returns. Of "
            f"files with more, those are read that Megatron writes (the state under {STATE_KEY!r}), and Lightning "
            "(*.ckpt)"
        )
    try:
        bare = content[STATE_KEY] if is_wrapped else content
        state = merge(list(map(parse_state, bare))) if isinstance(bare, list) else parse_state(bare)
        own = ("version", "step", "rank", "world_size") if is_ours else ()
        return StateFile(state=state, **{name: content[name] for name in own})
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged from error


def with_state(data: bytes, state: LoaderState, keys: Sequence[str] = ()) -> bytes:
    """The content of a file that `decoded` has read, with another state under `keys` and all else unchanged."""

    def changed(content: Any, keys: Sequence[str]) -> Any:
        if keys:
            key = next(key for key in content if str(key) == keys[0])
            return {**content, key: changed(content[key], keys[1:])}
        return {**content, STATE_KEY: state.to_dict()} if STATE_KEY in content else state.to_dict()

    buffer = io.BytesIO()
    torch.save(changed(_content(data), keys), buffer)
    return buffer.getvalue()


def beside_state(data: bytes) -> list[str]:
    """What others keep with the state in a file that `decoded` has read."""
    content = _content(data)
    is_theirs = STATE_KEY in content and content.get("format") != FORMAT
    return sorted(map(str, content.keys() - {STATE_KEY})) if is_theirs else []


def is_part_of_checkpoint(path: Location) -> bool:
    """Whether the file at `path` is one of those that `save_states` writes, which change together only."""
    return _NAME.fullmatch(path.name) is not None and decoded(read_bytes(path), path).version is not None


def _content(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _key_in(content: Any, name: str, path: Location) -> Any:
    """The key of a dict that is written `name`."""
    known = {str(key): key for key in content} if isinstance(content, dict) else {}
    if name not in known:
        raise StateError(f"{path}: has no key {name!r}; {f'there is {listed([*known])}' if known else 'it is no dict'}")
    return known[name]


def _keys_of_state(content: Any) -> tuple[Any, ...] | None:
    """The keys of a state that a user saved among other things; None if there is none."""
    if not isinstance(content, dict) or STATE_KEY in content:
        return None
    for key, value in content.items():
        inner = {(key,): value}
        if isinstance(value, dict):
            inner |= {(key, name): one for name, one in value.items()}
        for keys, one in inner.items():
            if isinstance(one, dict) and (one.get("format") == STATE_FORMAT or STATE_FORMAT in one):
                return keys
    return None


def read_bytes(path: Location) -> bytes:
    """The content of a file."""
    data = read_if_saved(path)
    if data is None:
        raise StateError(f"{path}: cannot be read: there is no such file")
    return data


def read_if_saved(path: Location) -> bytes | None:
    """The content of a file, None if there is none. Transient faults of the file system are retried; a file that still
    cannot be read is a `StateError`, never taken for absent."""
    try:
        return storage.read_if_there(path)
    except DatasetError as error:
        raise StateError(str(error)) from error
