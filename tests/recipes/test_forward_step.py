from types import SimpleNamespace

from recipes.run_log import sample_keys


def test_the_keys_of_a_batch_are_those_of_the_samples_in_its_packs() -> None:
    batch = SimpleNamespace(__key__=["a.tar/1,b.tar/2", "a.tar/3"])
    assert sample_keys(batch) == ["a.tar/1", "b.tar/2", "a.tar/3"]
