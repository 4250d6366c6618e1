from bridge_data.storage.store import first_line


def test_of_an_error_what_says_something_is_kept() -> None:
    assert first_line(ValueError("it is\nwrong\n\nDebug source:\nGeneric {}")) == "it is wrong"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("x" * 1000), limit=5) == "xxxxx ..."
