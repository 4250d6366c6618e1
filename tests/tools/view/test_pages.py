import io
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from bridge_data.tools.view import catalog
from bridge_data.tools.view.catalog import DataCatalog
from bridge_data.tools.view.pages import Site
from tests.prepared import write_dataset, write_texts
from tests.tools.view.conftest import client


def keys(html: str) -> list[str]:
    """The keys of the cards of a page."""
    return re.findall(r'<a class="key" href="[^"]+">([^<]+)</a>', html)


def test_the_first_page_shows_the_first_samples(page: TestClient) -> None:
    assert page.get("/").headers["location"] == "/samples"
    html = page.get("/samples").text
    assert len(keys(html)) == 24
    assert keys(html)[0] == "data-0000.tar/photo00000"
    assert "a picture of astronaut, cut at 0" in html
    assert "Page 1 of 2, 41 samples" in html


def test_pages_go_through_every_sample_once(page: TestClient) -> None:
    found = [key for number in (1, 2) for key in keys(page.get(f"/samples?page={number}").text)]
    assert len(set(found)) == len(found) == 41
    assert keys(page.get("/samples?page=99").text) == found[24:]


def test_filters_by_source_and_by_subflavor(page: TestClient) -> None:
    clips = keys(page.get("/samples?source=1").text)
    assert clips == [f"data-0000.tar/clip{number:04d}" for number in range(6)]
    assert keys(page.get("/samples?subflavor=task%3Dfilm").text) == clips
    assert keys(page.get("/samples?source=0&subflavor=task%3Dfilm").text) == []


def test_searches_for_the_beginning_of_a_key(page: TestClient) -> None:
    assert keys(page.get("/samples?q=clip0003").text) == ["data-0000.tar/clip0003"]
    assert len(keys(page.get("/samples?q=photo0000").text)) == 10
    assert keys(page.get("/samples?q=data-0001.tar/photo").text)[0].startswith("data-0001.tar/")
    assert keys(page.get("/samples?q=photo0000&source=1").text) == []


def test_samples_of_another_split_part_are_not_found(page: TestClient) -> None:
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
    for asked, expected in {
        "bytes=0-3": whole.content[:4],
        "bytes=10-": whole.content[10:],
        "bytes=-5": whole.content[-5:],
        "bytes=4-999999": whole.content[4:],
    }.items():
        answer = page.get("/media/0/0/3/0/0", headers={"range": asked})
        assert (answer.status_code, answer.content) == (206, expected)
        assert answer.headers["content-range"].endswith(f"/{len(whole.content)}")
    assert page.get("/media/0/0/3/0/0", headers={"range": "bytes=999999-"}).status_code == 416
    assert page.get("/media/0/0/3/0/0", headers={"range": "bytes=1-2,5-6"}).status_code == 200


def test_the_blend_is_counted_exactly(page: TestClient) -> None:
    html = page.get("/blend?draws=1000&lanes=4").text
    drawn = [int(number) for number in re.findall(r"<td>75\.000%</td><td>(\d+)</td>", html)]
    assert abs(drawn[0] - 750) < 14 and "25.000%" in html
    assert "read front to back" in page.get("/blend?part=1").text
    assert "expected 1 to" in page.get("/blend?draws=0").text or "1,000,000" in page.get("/blend?draws=x").text


def test_histograms_say_of_what_they_are(page: TestClient) -> None:
    html = page.get("/shapes").text
    assert "Of all 35 samples" in html
    assert "24 to 24 pixels" in html and "<svg" in html
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
    ["/sample/0/9/0", "/sample/0/0/99", "/sample/7/0/0", "/media/0/0/0/0/7", "/media/0/0/0/3/0", "/static/pages.py"],
)
def test_what_is_not_there_is_not_found(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
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
def test_paths_lead_to_no_file(page: TestClient, path: str) -> None:
    answer = page.get(path)
    assert answer.status_code == 404
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


def test_html_in_keys_and_captions_stays_text(hostile: TestClient) -> None:
    for path in ("/samples", "/sample/0/0/0", f"/samples?q={HOSTILE}", "/sample/0/0/1"):
        html = hostile.get(path).text
        assert "<script>alert" not in html and "<img src=x" not in html and "<b>&amp;" not in html
        assert "xyzxyz" not in html.partition("<main")[2]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in hostile.get("/sample/0/0/0").text
    assert "{{ config }}" in hostile.get("/sample/0/0/1").text


def test_documents_in_samples_are_downloads(hostile: TestClient) -> None:
    for number in range(3):
        answer = hostile.get(f"/media/0/0/0/0/{number}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_data_set_without_a_dataset_yaml_is_shown_as_it_is_stored(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "raw", [{"__key__": "a", "txt": "plain"}])
    (folder / ".nv-meta/dataset.yaml").unlink()
    page = client(Site(DataCatalog(folder, {}), None))
    assert "plain" in page.get("/samples").text and "plain" in page.get("/sample/0/0/0").text


def test_a_damaged_shard_is_told_and_hides_no_other(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "two", [{"__key__": f"{n}", "txt": f"text {n}"} for n in range(4)], per_shard=2)
    (folder / "data-0000.tar").write_bytes(b"")
    html = client(Site(DataCatalog(folder, {}), None)).get("/samples").text
    assert html.count('class="bad"') == 2 and "text 3" in html


def test_data_that_are_prepared_again_are_shown_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "CHECK_EVERY_S", 0.0)
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


def test_keys_that_are_not_utf8_are_shown_escaped(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "bytes", [{"__key__": "a\udcff", "txt": "its text"}])
    page = client(Site(DataCatalog(folder, {}), None))
    assert "a\\udcff" in page.get("/samples").text
    assert "its text" in page.get("/sample/0/0/0").text
    assert "its text" in page.get("/samples?q=a").text
