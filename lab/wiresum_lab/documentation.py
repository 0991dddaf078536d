"""Adapts the repository's pages for MkDocs (`make docs`, mkdocs.yml).

The pages are written for a reader of the repository: README.md and others are above `docs/`, links lead to sources, and
the Markdown is GitHub's. Three things change for the site:

- Pages above `docs/` become pages of the site, README.md its first.
- A link to any other file becomes a link into the repository at `repo_url`. Without `repo_url` the link becomes plain
  text, since a site has no sources. A link to nothing is a warning, which `--strict` makes an error. The changelog's
  links may be older than the pages: they lead to a page without its section, or become text.
- Python-Markdown wants an empty line before a list, and an indentation of four spaces within an item.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("mkdocs.wiresum")  # MkDocs counts the warnings of its own loggers

REPOSITORY = Path(__file__).resolve().parents[2]  # MkDocs loads this file alone, without the package
PAGES_ABOVE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages above docs/: their names in the repository, and their names on the site."""
HISTORY = "CHANGELOG.md"

FENCE = re.compile(r" *(```|~~~)")
ITEM = re.compile(r" *([-*]|\d+\.) ")
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # not there where the tests run

    for name, page in PAGES_ABOVE.items():
        files.append(File.generated(config, page, content=(REPOSITORY / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return adapted(markdown, source_of(page.file.src_uri), config.repo_url)


def source_of(page: str) -> str:
    """The path in the repository of a page of the site."""
    return next((name for name, here in PAGES_ABOVE.items() if here == page), f"docs/{page}")


def adapted(markdown: str, source: str, repository_url: str | None) -> str:
    """The Markdown of the site for `source`, a page of the repository."""
    lines: list[str] = []
    for line, is_code in lines_of(markdown):
        if is_code:
            lines.append(line)
            continue
        if ITEM.match(line) and lines and lines[-1] and not (ITEM.match(lines[-1]) or lines[-1].startswith(" ")):
            lines.append("")
        linked = LINK.sub(lambda link: adapted_link(link, source, repository_url), line)
        lines.append(re.sub(r"^ {2,3}(?=\S)", "    ", linked))
    return "\n".join(lines) + "\n"


def lines_of(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether the line is code."""
    in_code = False
    for line in markdown.splitlines():
        is_fence = bool(FENCE.match(line))
        yield line, in_code or is_fence
        in_code ^= is_fence


def adapted_link(link: re.Match[str], source: str, repository_url: str | None) -> str:
    is_picture, text, target = link.groups()
    path, _, anchor = target.partition("#")
    if ":" in path or not path:  # somewhere else, or on this page
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (REPOSITORY / path).exists():
        if source == HISTORY:
            return text
        log.warning("%s: no such file: %s", source, link[0])
        return link[0]
    section = f"#{anchor}" if anchor and source != HISTORY else ""
    if on_site := PAGES_ABOVE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None):
        return f"{is_picture}[{text}]({on_site}{section})"
    return f"[{text}]({repository_url.rstrip('/')}/blob/HEAD/{path})" if repository_url else text
