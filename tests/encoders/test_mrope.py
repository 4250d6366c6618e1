import torch

from bridge_data.encoders.mrope import IMAGE, TEXT, VIDEO, mrope_positions


def test_text_counts_all_three_on_together() -> None:
    assert mrope_positions(torch.zeros(3, dtype=torch.int64), [], []).tolist() == [[0, 1, 2]] * 3


def test_text_goes_on_behind_the_longer_side_of_an_image() -> None:
    types = torch.tensor([TEXT] + [IMAGE] * 6 + [TEXT] * 2)
    time, row, column = mrope_positions(types, [(1, 2, 3)], []).tolist()
    assert time == [0, 1, 1, 1, 1, 1, 1, 4, 5]
    assert row == [0, 1, 1, 1, 2, 2, 2, 4, 5]
    assert column == [0, 1, 2, 3, 1, 2, 3, 4, 5]


def test_the_time_of_a_video_goes_by_its_intervals() -> None:
    types = torch.tensor([VIDEO] * 3 + [TEXT] + [VIDEO] * 2)
    time, *_ = mrope_positions(types, [], [(3, 1, 1), (2, 1, 1)], [2.6, 1]).tolist()
    assert time == [0, 2, 5, 1, 2, 3]
