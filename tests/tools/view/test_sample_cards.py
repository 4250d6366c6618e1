import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.errors import ConfigError
from bridge_data.tools.view.catalog import open_split
from bridge_data.tools.view.contents import write_sheet
from tests.prepared import write_texts
from tests.tools.cli.runner import run_command

HOSTILE = "</style><script>alert(1)</script>"


def test_a_sheet_is_one_file_with_all_in_it(blend_yaml: Path, tmp_path: Path) -> None:
    file = tmp_path / "sheet.html"
    result = run_command("preview", blend_yaml, "--html", file, "--count", 4, "--split-part", "train")
    assert result.exit_code == 0, result.stderr
    assert result.output == f"{file}: 8 samples of {blend_yaml}\n"
    html = file.read_text()
    assert html.count('<article class="card">') == 8
    assert "a picture of coffee, cut at 1" in html and "what does film 3 say?" in html
    uris = re.findall(r'src="([^"]+)"', html)
    assert len(uris) == 4 + 2 * 4 and all(uri.startswith("data:") for uri in uris)
    assert Image.open(io.BytesIO(base64.b64decode(uris[0].partition(",")[2]))).size == (24, 18)
    assert not re.search(r"(href|src)=\"(?!data:)", html) and "<script" not in html
    assert "default-src 'none'" in html


def test_captions_stay_text(tmp_path: Path) -> None:
    part = open_split(write_texts(tmp_path / "texts", 2, lambda _: HOSTILE), "train", {})
    assert part is not None
    assert write_sheet(tmp_path / "sheet.html", HOSTILE, part, 1, 9) == 1
    html = (tmp_path / "sheet.html").read_text()
    assert "<script>" not in html and html.count("&lt;script&gt;") >= 3


def test_too_many_samples_are_refused(tmp_path: Path) -> None:
    part = open_split(write_texts(tmp_path / "texts", 1100), "train", {})
    assert part is not None
    with pytest.raises(ConfigError, match="1,100 samples are too many for one file, at most 1,000"):
        write_sheet(tmp_path / "sheet.html", "texts", part, 0, 2000)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_sheet(tmp_path / "none" / "sheet.html", "texts", part, 0, 2)
