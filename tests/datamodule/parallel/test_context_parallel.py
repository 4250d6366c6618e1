import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import ConfigError
from bridge_data.datamodule.parallel import (
    packed_seq_params,
    slice_for_context_parallel,
    zigzag_positions,
)

SIZES = st.sampled_from([1, 2, 4])


@given(size=SIZES, parts=st.lists(st.integers(1, 5), min_size=1, max_size=4), packed=st.booleans())
def test_the_parts_of_all_ranks_are_the_sequence_and_weigh_alike(size: int, parts: list[int], packed: bool) -> None:
    lengths = [2 * size * part for part in parts]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    cu_seqlens = bounds if packed else None
    ranks = [zigzag_positions(int(bounds[-1]), rank, size, cu_seqlens).tolist() for rank in range(size)]
    assert sorted(position for rank in ranks for position in rank) == list(range(int(bounds[-1])))
    start_of = torch.zeros(int(bounds[-1]), dtype=torch.int64)
    if packed:
        for start, end in itertools.pairwise(bounds.tolist()):
            start_of[start:end] = start
    # A causal token attends to those before it in its sequence: all ranks have as many of these as another.
    work = {sum(position - int(start_of[position]) for position in rank) for rank in ranks}
    assert len(work) == 1


def test_images_and_other_fields_stay_whole() -> None:
    @dataclasses.dataclass
    class Both:
        tokens: torch.Tensor
        images: torch.Tensor
        names: list[str]

    batch = Both(tokens=torch.arange(8)[None], images=torch.rand(3, 3, 4, 4), names=["a"])
    part = slice_for_context_parallel(batch, 1, 2)
    assert part.tokens.tolist() == [[2, 3, 4, 5]]
    assert part.images is batch.images
    assert part.names == ["a"]
    assert batch.tokens.shape == (1, 8)
    assert slice_for_context_parallel(batch, 0, 1) is batch


def test_what_cannot_be_cut_says_why() -> None:
    with pytest.raises(ConfigError, match=r"a sequence of 6 tokens \(positions 0 to 6\).* multiple of 4"):
        zigzag_positions(6, 0, 2)
    with pytest.raises(ConfigError, match=r"a sequence of 3 tokens \(positions 0 to 3\)"):
        zigzag_positions(8, 0, 2, torch.tensor([0, 3, 8]))
    with pytest.raises(ConfigError, match="different lengths"):
        slice_for_context_parallel({"tokens": torch.zeros(1, 8), "labels": torch.zeros(1, 4)}, 0, 2)
    with pytest.raises(ConfigError, match="row by row"):
        slice_for_context_parallel({"tokens": torch.zeros(2, 8)}, 0, 2, cu_seqlens=torch.tensor([0, 8]))


@pytest.mark.processes
def test_parameters_of_packed_sequences() -> None:
    params = packed_seq_params(torch.tensor([0, 3, 9, 9, 9]), cu_seqlens_padded=torch.tensor([0, 4, 12, 12, 12]))
    assert params.qkv_format == "thd"
    assert params.cu_seqlens_q.tolist() == params.cu_seqlens_kv.tolist() == [0, 3, 9]
    assert params.cu_seqlens_q.dtype == torch.int32
    assert params.cu_seqlens_q_padded.tolist() == [0, 4, 12]
    assert params.max_seqlen_q == params.max_seqlen_kv == 8
    plain = packed_seq_params(torch.tensor([0, 3, 9]))
    assert plain.cu_seqlens_q_padded is None
    assert plain.max_seqlen_q == 6
    with pytest.raises(ConfigError, match="expected equally many"):
        packed_seq_params(torch.tensor([0, 3]), cu_seqlens_padded=torch.tensor([0, 4, 8]))
