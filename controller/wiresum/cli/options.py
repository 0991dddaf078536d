"""Options of several commands."""

from __future__ import annotations

import ipaddress

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


def ipv4(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str:
    """A callback for an option whose value is an IPv4 address; empty: the option was not given."""
    try:
        return "" if text is None else str(ipaddress.IPv4Address(text))
    except ValueError:
        raise click.BadParameter(f"'{text}' is not an IPv4 address like 10.0.0.1") from None
