import io
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from bridge_data.plugins.view import data_catalog
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import Site
from tests.plugins.view.conftest import client, keys
from tests.prepared import write_dataset, write_texts


def test_pages_go_through_every_sample_once(page: TestClient) -> None:
    assert page.get("/").headers["location"] == "/samples"
    html = page.get("/samples").text
    assert "a picture of astronaut, cut at 0" in html and "Page 1 of 2, 41 samples" in html
    found = [key for number in (1, 2) for key in keys(page.get(f"/samples?page={number}").text)]
    assert keys(html) == found[:24] and found[0] == "data-0000.tar/photo00000"
    assert len(set(found)) == len(found) == 41
    assert keys(page.get("/samples?page=99").text) == found[24:]


CLIPS = [f"data-0000.tar/clip{number:04d}" for number in range(6)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("source=1", CLIPS),
        ("subflavor=task%3Dfilm", CLIPS),
        ("source=0&subflavor=task%3Dfilm", []),
        ("q=clip0003", ["data-0000.tar/clip0003"]),
        ("q=photo0000&source=1", []),
    ],
)
def test_samples_are_filtered_by_source_subflavor_and_the_beginning_of_a_key(
    page: TestClient, query: str, expected: list[str]
) -> None:
    assert keys(page.get(f"/samples?{query}").text) == expected


def test_samples_of_another_split_part_are_not_found(page: TestClient) -> None:
    assert len(keys(page.get("/samples?q=photo0000").text)) == 10
    assert keys(page.get("/samples?q=data-0001.tar/photo").text)[0].startswith("data-0001.tar/")
    (last,) = keys(page.get("/samples?part=1").text)[-1:]
    assert keys(page.get("/samples", params={"q": last}).text) == []
    assert keys(page.get("/samples", params={"q": last, "part": 1}).text) == [last]


def test_the_page_of_a_sample_has_its_parts_and_what_they_become(page: TestClient) -> None:
    html = page.get("/sample/0/0/3").text
    assert "CaptioningSample" in html and "uint8 3×18×24" in html
    assert '<img src="/media/0/0/3/0/0" alt="jpg of data-0000.tar/photo00003"' in html
    film = page.get("/sample/0/1/2").text
    assert "<video" in film and "<audio" in film and "what does film 2 say?" in film


def test_media_come_as_they_are_and_in_ranges(page: TestClient) -> None:
    whole = page.get("/media/0/0/3/0/0")
    assert whole.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(whole.content)).size == (24, 18)
    for asked, status, expected in (
        ("0-3", 206, whole.content[:4]),
        ("10-", 206, whole.content[10:]),
        ("-5", 206, whole.content[-5:]),
        ("4-999999", 206, whole.content[4:]),
        ("999999-", 416, None),
        ("1-2,5-6", 200, whole.content),
    ):
        answer = page.get("/media/0/0/3/0/0", headers={"range": f"bytes={asked}"})
        assert answer.status_code == status and expected in (None, answer.content)
        assert status != 206 or answer.headers["content-range"].endswith(f"/{len(whole.content)}")


def test_the_blend_is_counted_exactly_and_histograms_say_of_what_they_are(page: TestClient) -> None:
    html = page.get("/blend?draws=1000&lanes=4").text
    drawn = [int(number) for number in re.findall(r"<td>75\.000%</td><td>(\d+)</td>", html)]
    assert abs(drawn[0] - 750) < 14 and "25.000%" in html
    assert "read front to back" in page.get("/blend?part=1").text
    assert "1,000,000" in page.get("/blend?draws=x").text
    html = page.get("/shapes").text
    assert "Of all 35 samples" in html and "24 to 24 pixels" in html and "<svg" in html
    assert "length of clips" in page.get("/shapes?source=1").text.lower()


def test_batches_are_shown_as_the_trainer_gets_them(photos_page: TestClient) -> None:
    html = photos_page.get("/batches?number=1").text
    assert "Micro-batch 1" in html and "float32 4×3×18×24" in html
    picture = photos_page.get("/batches/1/pictures/3")
    assert Image.open(io.BytesIO(picture.content)).size == (24, 18)
    assert photos_page.get("/batches/1/pictures/4").status_code == 404
    assert "at most 200 are made" in photos_page.get("/batches?number=100000").text


@pytest.mark.parametrize(
    "path",
    [
        "/sample/0/9/0",
        "/sample/0/0/99",
        "/sample/7/0/0",
        "/media/0/0/0/0/7",
        "/media/0/0/0/3/0",
        "/static/pages.py",
        "/static/../pages.py",
        "/static/..%2fpages.py",
        "/static/%2e%2e/pages.py",
        "/static/....//pages.py",
        "/media/0/0/0/0/..%2f..%2fetc%2fpasswd",
        "/media/../../etc/passwd",
        "/sample/0/0/..%2f..%2fblend.yaml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
    ],
)
def test_what_is_not_there_is_not_found_and_paths_lead_to_no_file(page: TestClient, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 404 and "<h1>Not found</h1>" in answer.text
    assert "root:" not in answer.text and "import" not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "part=../../etc&q=x",
        "source=../etc",
        "subflavor=../../etc",
        "q=../../../etc/passwd",
        "q=%00",
        "q='%20OR%201=1--",
    ],
)
def test_queries_name_no_file(page: TestClient, query: str) -> None:
    answer = page.get(f"/samples?{query}")
    assert answer.status_code == 200 and "root:" not in answer.text
    assert "q=" not in query or keys(answer.text) == []


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{'xyz'*3}}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """A data set whose keys and captions would like to be programs."""
    samples = [
        {"__key__": "\"onclick='x'<b>&amp;", "txt": HOSTILE, "html": HOSTILE, "svg": f"<svg>{HOSTILE}</svg>"},
        {"__key__": "javascript:alert(1)", "txt": "{{ config }}", "js": "alert(1)"},
    ]
    return client(Site(DataCatalog(write_dataset(tmp_path_factory.mktemp("hostile"), samples), {}), None))


def test_html_in_keys_and_captions_stays_text_and_documents_are_downloads(hostile: TestClient) -> None:
    for path in ("/samples", "/sample/0/0/0", f"/samples?q={HOSTILE}", "/sample/0/0/1"):
        html = hostile.get(path).text
        assert "<script>alert" not in html and "<img src=x" not in html and "<b>&amp;" not in html
        assert "xyzxyz" not in html.partition("<main")[2]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in hostile.get("/sample/0/0/0").text
    assert "{{ config }}" in hostile.get("/sample/0/0/1").text
    for number in range(3):
        headers = hostile.get(f"/media/0/0/0/0/{number}").headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == "attachment" and headers["x-content-type-options"] == "nosniff"


def test_odd_keys_and_data_without_a_dataset_yaml_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "raw", [{"__key__": "a\udcff", "txt": "plain"}])
    for _ in range(2):
        page = client(Site(DataCatalog(folder, {}), None))
        assert "a\\udcff" in page.get("/samples").text
        assert all("plain" in page.get(path).text for path in ("/samples", "/samples?q=a", "/sample/0/0/0"))
        (folder / ".nv-meta/dataset.yaml").unlink(missing_ok=True)


def test_a_damaged_shard_is_told_and_hides_no_other(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "two", [{"__key__": f"{n}", "txt": f"text {n}"} for n in range(4)], per_shard=2)
    (folder / "data-0000.tar").write_bytes(b"")
    html = client(Site(DataCatalog(folder, {}), None)).get("/samples").text
    assert html.count('class="bad"') == 2 and "text 3" in html


def test_data_that_are_prepared_again_are_shown_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_catalog, "CHECK_EVERY_S", 0.0)
    folder = write_texts(tmp_path / "texts", 60, lambda number: f"old {number}")
    page = client(Site(DataCatalog(folder, {}), None))
    assert "old 3" in page.get("/samples").text and "old 7" in page.get("/samples?q=000007").text
    shutil.rmtree(folder)
    assert "no such" in page.get("/samples").text
    write_texts(folder, 30, lambda number: f"new {number}")
    html = page.get("/samples").text
    assert "new 3" in html and "Page 1 of 2, 30 samples" in html
    assert "new 7" in page.get("/sample/0/0/7").text and "new 7" in page.get("/samples?q=000007").text
    assert page.get("/sample/0/0/50").status_code == 404
