"""The site's pages are the repository's, with links and lists as MkDocs needs them."""

from __future__ import annotations

import logging

import pytest

from wiresum_lab.documentation import PAGES_ABOVE, REPOSITORY, adapted, source_of


@pytest.mark.parametrize(
    ("source", "link", "on_site"),
    [
        ("docs/torch.md", "[a](mpi.md#how-floats-are-rounded)", "[a](mpi.md#how-floats-are-rounded)"),
        ("docs/torch.md", "[a](../CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs/torch.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        (
            "docs/torch.md",
            "[`a`](../p4src/constants.toml)",
            "[`a`](https://example.org/w/blob/HEAD/p4src/constants.toml)",
        ),
        ("README.md", "[a](docs/torch.md#use), [b](SECURITY.md)", "[a](torch.md#use), [b](reporting.md)"),
    ],
)
def test_a_link_leads_where_it_leads_in_the_repository(source: str, link: str, on_site: str) -> None:
    assert adapted(link, source, "https://example.org/w/") == on_site + "\n"


def test_without_a_repository_a_link_to_a_source_is_text() -> None:
    assert adapted("See [`a`](../p4src/constants.toml).", "docs/torch.md", None) == "See `a`.\n"


def test_a_link_to_nothing_is_a_warning_of_mkdocs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mkdocs"):
        assert adapted("[a](../no.md)", "docs/torch.md", None) == "[a](../no.md)\n"
    assert [record.name for record in caplog.records] == ["mkdocs.wiresum"]


def test_links_of_the_changelog_may_be_older_than_the_pages(caplog: pytest.LogCaptureFixture) -> None:
    assert adapted("[a](./docs/torch.md#gone), [b](./docs/gone.md)", "CHANGELOG.md", None) == "[a](torch.md), b\n"
    assert not caplog.records


def test_a_list_after_a_paragraph_and_what_belongs_to_an_item_are_seen() -> None:
    page = "Two:\n- a\n  and more\n  - b\n- c\n\n1. d\n   - e\n"
    assert adapted(page, "docs/torch.md", None) == ("Two:\n\n- a\n    and more\n    - b\n- c\n\n1. d\n    - e\n")


def test_code_stays_as_it_is() -> None:
    page = "```\nTwo:\n- a\n  [b](../no.md)\n```\n"
    assert adapted(page, "docs/torch.md", None) == page


def test_every_page_above_the_docs_is_there() -> None:
    for name, page in PAGES_ABOVE.items():
        assert (REPOSITORY / name).is_file()
        assert source_of(page) == name
    assert source_of("torch.md") == "docs/torch.md"
