from __future__ import annotations

import pytest

from wiresum.controller.security.names import Claims, parse


@pytest.mark.parametrize(
    "claims",
    [
        Claims(),
        Claims(frozenset({"worker"}), ("night *", "a/b:c%", "[ab]-?"), ("Bild & Ton", "größe")),
        Claims(frozenset({"controller", "switch"})),
    ],
)
def test_what_a_certificate_says_survives_being_written_as_uris(claims: Claims) -> None:
    uris = claims.uris()
    assert all(uri.isascii() and " " not in uri for uri in uris)
    assert parse(uris) == claims


def test_what_others_say_in_a_certificate_allows_nothing() -> None:
    assert parse(["role/worker", "https://wiresum:role/worker", "wiresum:role", "wiresum:role/root", ""]) == Claims()
