"""Structures of JSON and YAML with parts of others in their place: read as they are, or refused by an error of ours.

`targets.py` damages bytes of files. Here the files are sound, and what they say is not.
"""

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data import StateError, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.data.prepared import PreparedDataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.order.state import LoaderState
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from tests.prepared import write_blend, write_texts

WORDS = ("train", "val", "path", "blend", "weight", "a", "data-0000.tar", "data-{0000..0001}.tar", "{", "0", "1", "end")

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)

VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.sampled_from(WORDS), inner),
    max_leaves=12,
)

EXAMPLES = [60, pytest.param(1_000, marks=pytest.mark.slow)]


def with_others(data: st.DataObject, value: Any) -> Any:
    """`value` with one or two of its parts, at any level, removed or replaced by something else."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 2))):
        holder, depth = value, data.draw(st.integers(0, 6))
        while isinstance(holder, dict | list) and holder:
            name: Any = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            inner = holder[name]
            if depth and isinstance(inner, dict | list) and inner:
                holder, depth = inner, depth - 1
                continue
            if data.draw(st.booleans()):
                holder[name] = data.draw(VALUES)
            else:
                del holder[name]
            break
    return value


def tried(num_examples: int, check: Callable[[st.DataObject], None]) -> None:
    """Run `check` on so many examples."""
    run = given(st.data())(check)
    settings(max_examples=num_examples, suppress_health_check=list(HealthCheck), deadline=None)(run)()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two data sets and a blend of them."""
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 120)
    write_texts(folder / "b", 60)
    write_blend(folder / "blend.yaml", {"a": 3, "b": 1}, val="a")
    return folder


@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_a_state_is_restored_as_it_is_or_refused(folder: Path, num_examples: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
    dataset = get_train_dataset(
        folder / "blend.yaml", worker_config=config, batch_size=4, shuffle_buffer_size=20, max_samples_per_sequence=10
    )
    with get_savable_loader(dataset) as loader:
        for _, _ in zip(range(30), loader, strict=False):
            pass
        saved = json.loads(json.dumps(loader.save_state_rank()))
    assert LoaderState.from_dict(saved).to_dict() == saved

    def check(data: st.DataObject) -> None:
        state = with_others(data, saved)
        with contextlib.suppress(StateError):
            read = LoaderState.from_dict(copy.deepcopy(state))
            assert without_defaults(read.to_dict()) == without_defaults(state)

    tried(num_examples, check)


def without_defaults(state: dict[str, Any]) -> dict[str, Any]:
    """The state without optional fields that have their defaults."""
    optional = ("epoch_batches", "ended", "extras", "repetition", "resharded")
    state = {name: value for name, value in state.items() if name != "checksums"}
    return {name: value for name, value in state.items() if name not in optional or value}


@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_a_metadataset_is_opened_or_refused(folder: Path, num_examples: int) -> None:
    sound = yaml.safe_load((folder / "blend.yaml").read_text())
    file = folder / "other.yaml"

    def check(data: st.DataObject) -> None:
        file.write_text(yaml.safe_dump(with_others(data, sound)))
        try:
            for part in split_parts(file):
                assert load_plan(file, split_part=part).num_samples > 0
        except (ConfigError, DatasetError) as error:
            assert str(folder) in str(error)

    tried(num_examples, check)


@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_a_split_is_read_or_refused(folder: Path, num_examples: int) -> None:
    meta = folder / "a" / ".nv-meta"
    sound = yaml.safe_load((meta / "split.yaml").read_text())

    def check(data: st.DataObject) -> None:
        (meta / "other.yaml").write_text(yaml.safe_dump(with_others(data, sound)))
        try:
            dataset = PreparedDataset.open(folder / "a")
            for part in dataset.split_parts("other.yaml"):
                shards = dataset.split(part, split_config="other.yaml")
                assert set(shards.names) <= dataset.shard_counts.keys()
                assert sum(shards.counts) == shards.num_samples
        except (ConfigError, DatasetError) as error:
            assert str(meta) in str(error)

    tried(num_examples, check)
