from bridge_data.tools.doctor.findings import Finding, Level, in_order_of_gain


def finding(code: str, level: Level, factor: float = 1.0) -> Finding:
    return Finding(code=code, level=level, what="", change="", factor=factor)


def test_what_stops_comes_first_and_then_what_gains_most() -> None:
    found = [
        finding("note", Level.NOTE, 100),
        finding("little", Level.SLOWS, 1.1),
        finding("much", Level.SLOWS, 3),
        finding("stop", Level.STOPS),
    ]
    assert [each.code for each in in_order_of_gain(found)] == ["stop", "much", "little", "note"]


def test_the_level_of_plain_data_is_a_word() -> None:
    assert finding("a", Level.MIXES).to_dict()["level"] == "mixes"
