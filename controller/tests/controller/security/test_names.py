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
def test_claims_survive_encoding_as_uris(claims: Claims) -> None:
    uris = claims.uris()
    assert all(uri.isascii() and " " not in uri for uri in uris)
    assert parse(uris) == claims


def test_foreign_uris_in_a_certificate_grant_nothing() -> None:
    assert parse(["role/worker", "https://wiresum:role/worker", "wiresum:role", "wiresum:role/root", ""]) == Claims()
