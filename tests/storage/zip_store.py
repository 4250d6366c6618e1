"""A store as one outside of this package would write it: `zip://NAME/PATH` is a member of a zip file, `NAME.zip` in the
folder `$ZIP_FOLDER`."""

import os
import zipfile
from pathlib import Path

from bridge_data.errors import DatasetError
from bridge_data.storage import Store, Version
from bridge_data.storage.atomic import locked, replacing


class ZipStore(Store):
    """Members of zip files; a zip file that is not there is empty."""

    def find(self, url: str) -> Version | None:
        return self._versions(url).get(self.split(url)[1])

    def read(self, url: str, start: int, num_bytes: int) -> tuple[bytes, Version]:
        version = self.find(url)
        if version is None:
            raise DatasetError(f"{url}: no such object in the zip file")
        with zipfile.ZipFile(self._file(url)) as archive, archive.open(self.split(url)[1]) as member:
            member.seek(start)
            return member.read(num_bytes), version

    def list(self, url: str) -> dict[str, Version]:
        folder = self.split(url)[1]
        prefix = f"{folder}/" if folder else ""
        found = {name: version for name, version in self._versions(url).items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): found[name] for name in sorted(found)}

    def write(self, url: str, content: bytes | Path) -> Version:
        data = content.read_bytes() if isinstance(content, Path) else content
        self._rewrite(url, {self.split(url)[1]: data})
        return self._versions(url)[self.split(url)[1]]

    def delete(self, url: str) -> None:
        self._rewrite(url, {})

    def _file(self, url: str) -> Path:
        return Path(os.environ["ZIP_FOLDER"], f"{self.split(url)[0].removeprefix('zip://')}.zip")

    def _versions(self, url: str) -> dict[str, Version]:
        if not self._file(url).exists():
            return {}
        with zipfile.ZipFile(self._file(url)) as archive:
            return {one.filename: Version(one.file_size, f"{one.CRC:08x}") for one in archive.infolist()}

    def _rewrite(self, url: str, new: dict[str, bytes]) -> None:
        """The zip file without the member at `url`, and with `new` ones."""
        file = self._file(url)
        with locked(f"{file}.lock"):
            members = {}
            if file.exists():
                with zipfile.ZipFile(file) as archive:
                    members = {name: archive.read(name) for name in archive.namelist()}
            members.pop(self.split(url)[1], None)
            with replacing(file) as temporary, zipfile.ZipFile(temporary, "w") as archive:
                for name, data in (members | new).items():
                    archive.writestr(name, data)
