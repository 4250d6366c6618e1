import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.runs import named_encoder
from tests.tools.bench import encoders

HERE = "tests.tools.bench.encoders"


def test_classes_functions_and_encoders_have_names_also_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(named_encoder(f"{HERE}:OnlyOdd"), encoders.OnlyOdd)
    assert isinstance(named_encoder(f"{HERE}:make"), encoders.Hashing)
    assert named_encoder(f"{HERE}:ready") is encoders.ready
    content = "from bridge_data import DefaultTaskEncoder\nclass Mine(DefaultTaskEncoder): pass\n"
    (tmp_path / "encoders_of_mine.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert type(named_encoder("encoders_of_mine:Mine")).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests", "expected package.module:Name"),
        (":Hashing", "expected package.module:Name"),
        (f"{HERE}:Nope", "has no Nope; there is Hashing, OnlyOdd, Packed, Cooked, ready"),
        (f"{HERE}:number", "got 3, which is no TaskEncoder; there is Hashing"),
        (f"{HERE}:work_hard", "got None, which is no TaskEncoder"),
        (f"{HERE}:needs", r"needs\(\) failed: TypeError: .* name a function without any"),
        ("no_such_package.encoders:Hashing", "no module 'no_such_package': it is neither in /"),
        ("tests.tools.bench.no_such:Hashing", r"no module 'tests\.tools\.bench\.no_such'"),
        ("needy:Mine", "needy cannot be imported: it needs not_there_at_all, which is not"),
        ("broken:Mine", "broken cannot be imported: ZeroDivisionError: "),
        ("bare:Mine", r"bare\.py has no Mine; there is no task encoder in it"),
    ],
)
def test_wrong_encoder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    for module, content in (("needy", "import not_there_at_all\n"), ("broken", "1 / 0\n"), ("bare", "")):
        (tmp_path / f"{module}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match=message):
        named_encoder(name)
