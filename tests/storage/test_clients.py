import sys
import threading

import pytest

from bridge_data.errors import ConfigError
from bridge_data.storage.clients import open_store
from tests.object_store import Bucket


@pytest.mark.parametrize(("url", "module"), [("s3://some/a", "obstore"), ("msc://some/a", "multistorageclient")])
def test_a_missing_package_is_named_with_the_way_to_install_it(
    url: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'takes the package {module}: pip install "bridge-data\[s3\]"'):
        open_store(url)


def test_settings_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"az://container: cannot be opened: .*Account must be specified"):
        open_store("az://container/a")


def test_threads_share_a_client(bucket: Bucket) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(open_store(f"{bucket.url}/a")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
