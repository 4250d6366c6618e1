"""URLs of objects: `s3://bucket/folder/file`.

Enters: text. Leaves: the store it names, and the key in it. Guarantee: a path without `://` is local, whatever it looks
like.
"""

import os

from bridge_data.errors import ConfigError

SCHEMES = ("s3", "gs", "az", "msc")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a URL."""
    return "://" in os.fspath(path)


def split_url(url: str) -> tuple[str, str]:
    """(`s3://bucket`, `folder/file`) of `s3://bucket/folder/file`.

    Raises:
        ConfigError: for another kind of URL, or one without a bucket.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ConfigError(f"{url}: unknown kind of URL; expected a local path, or one of {known}")
    if not bucket:
        raise ConfigError(
            f"{url}: names no {'profile' if scheme == 'msc' else 'bucket'}; expected {scheme}://NAME/PATH"
        )
    return f"{scheme}://{bucket}", key.strip("/")
