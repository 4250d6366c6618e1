"""A page over the data of `shown_data`."""

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bridge_data import DefaultTaskEncoder
from bridge_data.configs import DataConfig
from bridge_data.plugins.view.data_catalog import DataCatalog
from bridge_data.plugins.view.pages import Site, application
from bridge_data.plugins.view.shown_run import SavedRun, ShownRun
from bridge_data.runs.training_run import TrainingRun
from tests.plugins.view.shown_data import write_site

ADDRESS = "http://127.0.0.1:8750"


def client(site: Site, **settings: object) -> TestClient:
    """A browser without a browser."""
    return TestClient(application(site, **settings), base_url=ADDRESS, follow_redirects=False)


@pytest.fixture(scope="session")
def blend_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A metadataset of photos and clips."""
    return write_site(tmp_path_factory.mktemp("shown"))


@pytest.fixture(scope="session")
def page(blend_yaml: Path) -> TestClient:
    """The pages of the metadataset."""
    return client(Site(DataCatalog(blend_yaml, {}), None))


@pytest.fixture(scope="session")
def photos_page(blend_yaml: Path) -> TestClient:
    """The pages of the photos alone, with batches of the default encoder."""
    photos = blend_yaml.parent / "photos"
    return client(Site(DataCatalog(photos, {}), lambda _: plain_run(photos)))


def plain_run(path: Path, **options: object) -> ShownRun:
    """Batches of four of the plainest encoder, in four lanes."""
    run = TrainingRun(data=DataConfig(path=str(path), options={"micro_batch_size": 4, "num_lanes": 4, **options}))
    return ShownRun.of(run, DefaultTaskEncoder(), SavedRun())


def keys(html: str) -> list[str]:
    """The keys of the samples of a page."""
    return re.findall(r'<a class="key" href="[^"]+">([^<]+)</a>', html)
