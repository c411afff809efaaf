"""What the site has beyond docs/: the README as its first page, files that pages link to, and scripts.

Pages are written to be read in the repository too, so their links are those of the repository. A link that leads out
of docs/ leads to a page here that shows the file. Every built page is read again: none may ask anything of the network.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.plugins.site")  # Under this name warnings are errors where mkdocs is strict.

ROOT = Path(__file__).parents[2]
README, FIRST = "README.md", "index.md"
ASSETS = {
    "assets/site.css": "docs/site/site.css",
    "assets/mermaid.js": ".venv-docs/npm/mermaid/dist/mermaid.min.js",
    "assets/iframe-worker.js": ".venv-docs/npm/iframe-worker/shim/index.js",
}
"""What browsers need, by its place in the site; `make setup-docs` fetches the packages."""
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")
_IN_STYLE = re.compile(r"url\(['\"]?((?:https?:)?//[^)]+)")
_FENCES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, a page for each file outside docs/ that a page links to, and scripts."""
    readme = (ROOT / README).read_text(encoding="utf-8")
    files.append(File.generated(config, FIRST, content=readme))
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    outside = {path for page, text in texts.items() for path in _linked(page, text) if _in_site(path) not in texts}
    for path in sorted(path for path in outside if (ROOT / path).is_file() and not path.startswith("docs/")):
        shown = (ROOT / path).read_text(encoding="utf-8")
        text = f"# {path}\n\n````{_FENCES.get(Path(path).suffix, 'text')}\n{shown}````\n"
        files.append(File.generated(config, _in_site(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    for place, asset in ASSETS.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / asset)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    del config
    source = page.file.src_uri

    def link(found: re.Match[str]) -> str:
        to = _in_site(_in_repository(source, found[1]))
        if files.get_file_from_path(to) is None:
            return found[1]
        return os.path.relpath(to, PurePosixPath(source).parent)

    return _LINK.sub(link, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of every page that would ask something of the network."""
    site = Path(config.site_dir)
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = file.read_text(encoding="utf-8")
        for address in _Requests(text).found if file.suffix == ".html" else _IN_STYLE.findall(text):
            log.warning("%s: asks for %s, but the site is read without a network", file.relative_to(site), address)


class _Requests(HTMLParser):
    """What a browser fetches from elsewhere as it opens a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Links that a reader follows are no requests; all else that has an address is."""
        given = dict(attrs)
        is_link = tag == "a" or (tag == "link" and given.get("rel") in {"canonical", "prev", "next"})
        for address in () if is_link else (given.get("src"), given.get("href"), given.get("data")):
            if address and re.match(r"(https?:)?//", address):
                self.found.append(address)


def _linked(page: str, text: str) -> Iterator[str]:
    """Paths in the repository that a page of the site links to."""
    return (_in_repository(page, target) for target in _LINK.findall(text))


def _in_repository(page: str, target: str) -> str:
    """Where in the repository a link leads that stands on a page of the site."""
    folder = "" if page == FIRST else PurePosixPath("docs", page).parent
    return os.path.normpath(PurePosixPath(folder, target))


def _in_site(path: str) -> str:
    """Where the site has a file of the repository."""
    if path == README:
        return FIRST
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{path}.md"
