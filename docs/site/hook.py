"""What mkdocs does not do by itself: pages of the API, pages from outside docs/, and a check that nothing is fetched.

The API pages are made of the names that packages of `bridge_data` import in their `__init__.py`. Nothing is imported
for it: mkdocstrings reads the source.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

OUTSIDE = {"README.md": "overview.md"} | {
    f"{page}.md": f"{page}.md" for page in ("CHANGELOG", "CONTRIBUTING", "SECURITY")
}
"""Pages at the root of the repository, and their names on the site. The site's index is docs/README.md."""

API = {
    "loading": ("Loading and saving", ("lanes", "loader", "topology", "limits", "plan", "run_options")),
    "datamodule": ("DataModule", ("datamodule",)),
    "task_encoders": ("Task encoders", ("task",)),
    "encoders": ("Encoders of model families", ("encoders",)),
    "samples": ("Samples and batches", ("samples",)),
    "decoding": ("Decoding", ("decode",)),
    "preparing": ("Writing data sets", ("prepare",)),
    "shards": ("Shards", ("data",)),
    "order": ("Order and states", ("order",)),
    "errors": ("Errors", ("errors",)),
    "energon": ("Energon's names", ("energon",)),
    "plugins": ("Plug-ins", ("plugins",)),
}
"""The API pages: title, and the parts of the package in which its names are defined."""

BESIDES = {
    "loading": ("bridge_data.loader", "bridge_data.plan.load_plan", "bridge_data.run_options.TrainingOptions"),
    "datamodule": ("bridge_data.datamodule",),
    "encoders": ("bridge_data.encoders",),
    "shards": ("bridge_data.data",),
    "order": ("bridge_data.order",),
}
"""What is on an API page besides names of `bridge_data`: packages with all that they export, and single names."""

_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[\w-]+)?\))")


def exported(package: str) -> Iterator[tuple[str, str]]:
    """The names that a package exports: (part of `bridge_data` that defines it, name)."""
    source = ROOT.joinpath(*package.split("."), "__init__.py").read_text()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None or node.module == "bridge_data.later":
            continue
        root, _, part = node.module.partition(".")
        if root == "bridge_data" and part:
            yield from ((part.split(".")[0], alias.asname or alias.name) for alias in node.names)


def api_pages() -> Iterator[tuple[str, str]]:
    """The name and text of each API page."""
    public = set(exported("bridge_data"))
    if lost := {part for part, _ in public} - {part for _, parts in API.values() for part in parts}:
        raise PluginError(f"docs/site/hook.py: no API page has the names of bridge_data.{min(lost)}: add it to API")
    for page, (title, parts) in API.items():
        paths = {name: f"bridge_data.{name}" for part, name in public if part in parts}
        for path in BESIDES.get(page, ()):
            is_package = ROOT.joinpath(*path.split(".")).is_dir()
            names = [name for _, name in exported(path)] if is_package else [path.rpartition(".")[2]]
            paths = {name: f"{path}.{name}" if is_package else path for name in names} | paths
        blocks = "".join(f"\n::: {paths[name]}\n" for name in sorted(paths, key=str.lower))
        yield f"api/{page}.md", f"# {title}\n{blocks}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and files outside it to which pages link."""
    linked = {link[2] for page in files.documentation_pages() for link in _LINK.finditer(page.content_string)}
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for path in sorted(target.removeprefix("../") for target in linked if target.startswith("../")):
        if path not in OUTSIDE and (ROOT / path).is_file():
            files.append(File(path, str(ROOT), config.site_dir, use_directory_urls=False))
    for name, text in api_pages():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links, which hold in the repository, to where things are on the site."""
    outside = page.file.src_uri in OUTSIDE.values()

    def moved(target: str) -> str:
        if outside:
            return target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE.get(target, target)
        return OUTSIDE.get(path := target.removeprefix("../"), path) if target.startswith("../") else target

    return _LINK.sub(lambda link: f"{link[1]}{moved(link[2])}{link[3]}", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Raises: PluginError if a page of the site fetches anything from elsewhere."""
    fetched = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:[^>]*>|<link\b[^>]*https?:[^>]*>")
    for file in Path(config.site_dir).rglob("*.html"):
        for element in fetched.findall(file.read_text()):
            if 'rel="canonical"' not in element:
                raise PluginError(f"{file.name} fetches something over the network: {element}")
    for file in Path(config.site_dir).rglob("*.css"):
        if found := re.search(r"(?:@import|url\()[^;)]*https?:[^;)]*", file.read_text()):
            raise PluginError(f"{file.name} fetches something over the network: {found[0]}")
