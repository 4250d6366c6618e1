import gc

import torch

from bridge_data.loader.recycling import Recycler

LARGE = (4, 1 << 20)


def test_memory_is_used_again_when_nothing_looks_at_it() -> None:
    recycler = Recycler()
    first = recycler.allocate(LARGE, torch.uint8)
    assert first is not None
    address, view = first.data_ptr(), first[1:3].numpy()
    del first
    gc.collect()
    second = recycler.allocate(LARGE, torch.uint8)
    assert second is not None and second.data_ptr() != address
    view[...] = 7
    del view
    gc.collect()
    third = recycler.allocate((2, 1 << 20), torch.uint8)
    assert third is not None and third.data_ptr() == address and third.shape == (2, 1 << 20)


def test_kept_tensors_keep_their_values() -> None:
    recycler = Recycler()
    kept = []
    for number in range(12):
        tensor = recycler.allocate(LARGE, torch.uint8)
        assert tensor is not None
        kept.append(tensor.fill_(number))
    assert [int(tensor.min()) for tensor in kept] == [int(tensor.max()) for tensor in kept] == list(range(12))
    kept.clear()
    gc.collect()
    assert len(recycler._spare) == 4


def test_small_tensors_are_left_to_torch() -> None:
    assert Recycler().allocate((10, 10), torch.float32) is None


def test_another_size_gets_memory_of_its_own() -> None:
    recycler = Recycler()
    for count in (1 << 20, 1 << 23, 1 << 20):
        tensor = recycler.allocate((count,), torch.float32)
        assert tensor is not None and tensor.shape == (count,)
        tensor.fill_(1)
