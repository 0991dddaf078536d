"""`wiresum ca`: a cluster's own certificate authority."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import click

from wiresum.controller.security import authority as certificates
from wiresum.controller.security.authority import (
    DAYS_DEFAULT,
    DAYS_MAX,
    ISSUED_FILE,
    Authority,
    AuthorityError,
    Holder,
    Shown,
)
from wiresum.controller.security.names import (
    CONTROLLER,
    FALLBACK,
    OPERATOR,
    ROLES,
    SERVING_ROLES,
    SWITCH,
    WORKER,
    Claims,
)
from wiresum.join.credentials import CERTIFICATE_FILE, REVOKED_FILE, CredentialsError, load

LOCAL_ADDRESSES = ("127.0.0.1", "::1")

F = TypeVar("F", bound=Callable[..., Any])

DirectoryPath = click.Path(file_okay=False, path_type=Path)
_ca_option = click.option(
    "--ca", "ca_directory", type=DirectoryPath, required=True, help="Where `wiresum ca init` made it."
)
_dns_option = click.option("--dns", "dns_names", multiple=True, metavar="NAME", help="By which name, too. Repeatable.")


@click.group(
    epilog="""\b
A cluster in four steps (docs/cluster.md has services):
  wiresum ca init pki --address 10.0.0.1          # on a machine that keeps the authority's key
  wiresum switch --control 10.0.0.1:43487 --tls pki/controller    # on the switch's host, with a copy of pki/controller
  WIRESUM_TLS=pki/worker torchrun ... train.py    # on every worker, with a copy of pki/worker
  wiresum jobs --tls pki/operator                 # you
"""
)
def ca() -> None:
    """Make the certificates by which the parts of a cluster know each other.

    Every party has a directory with ca.crt (whom it trusts), tls.crt (who it is) and tls.key. A certificate has a role:
    a worker may join jobs, an operator may list, create, end and drain, a controller serves both and drives switches,
    and a switch is driven.
    """


@ca.command(
    epilog="""\b
Examples:
  wiresum ca init pki --address 10.0.0.1 --dns controller.example
  wiresum ca init pki                             # everything on this one host
"""
)
@click.argument("directory", type=DirectoryPath)
@click.option("--name", default="wiresum", show_default=True, help="What the authority is called.")
@click.option(
    "--address", "addresses", multiple=True, metavar="IP", help="Where the controller is reached. Repeatable."
)
@_dns_option
def init(directory: Path, name: str, addresses: tuple[str, ...], dns_names: tuple[str, ...]) -> None:
    """Make an authority in DIRECTORY, and what a first cluster needs.

    DIRECTORY/ca.key signs certificates: keep it off the cluster's machines. DIRECTORY/controller, switch, operator and
    worker are TLS directories, one for each role. The first two hold for this host and for what --address and --dns
    name. The worker's is for jobs of any name, and for no tenant that you name: all hosts with it are one tenant of
    their own, and may also join jobs that an operator creates without a tenant. `wiresum ca issue worker --tenant`
    makes certificates for others.
    """
    with _explained():
        authority = Authority.create(directory, name)
        for role in ROLES:
            serves = role in SERVING_ROLES
            holder = Holder(
                name=f"{name} {role}",
                claims=Claims(roles=frozenset({role})),
                addresses=_with_local(addresses) if serves else (),
                dns_names=_with_local_names(dns_names) if serves else (),
            )
            _say(authority.issue(holder, directory / role, DAYS_DEFAULT[role]))
    click.echo(f"The authority is {directory / 'ca.key'}: who has it can be anybody, so keep it off the cluster.")


@ca.group()
def issue() -> None:
    """Make one more TLS directory."""


def _common_options(command: F) -> F:
    for option in (
        _ca_option,
        click.option("--days", type=click.IntRange(1, DAYS_MAX), help="How long it holds.  [default: by role]"),
        click.option("--name", required=True, help="Of the holder, for logs: a host, a person, a team."),
        click.argument("directory", type=DirectoryPath),
    ):
        command = option(command)
    return command


@issue.command(
    epilog="""\b
Examples:
  wiresum ca issue worker --ca pki --name vision --tenant vision --job 'vision-*' vision
  wiresum ca issue worker --ca pki --name node7 --tenant vision --address 10.0.1.7 node7   # data elsewhere
  wiresum ca issue worker --ca pki --name node8 --fallback --address 10.0.0.8 node8   # may serve if nobody does
"""
)
@_common_options
@click.option("--job", "jobs", multiple=True, metavar="PATTERN", help="Jobs it may join.  [default: all]  Repeatable.")
@click.option("--tenant", "tenants", multiple=True, help="On whose account.  [default: its own name]  Repeatable.")
@click.option(
    "--address", "addresses", multiple=True, metavar="IP", help="Of its data sockets, if not where it calls from."
)
@click.option(
    "--fallback",
    is_flag=True,
    help="It may also serve, at --address and at no other: a worker there may start a switch while no other serves "
    "its job.",
)
def worker(
    ca_directory: Path,
    days: int | None,
    name: str,
    directory: Path,
    jobs: tuple[str, ...],
    tenants: tuple[str, ...],
    addresses: tuple[str, ...],
    fallback: bool,
) -> None:
    """A worker, which may join jobs, and do nothing else."""
    if fallback and not addresses:
        raise click.UsageError("--fallback needs --address: where it serves")
    claims = Claims(frozenset({WORKER, FALLBACK} if fallback else {WORKER}), jobs, tenants)
    _issue(ca_directory, Holder(name, claims, addresses), directory, days or DAYS_DEFAULT[WORKER])


@issue.command()
@_common_options
def operator(ca_directory: Path, days: int | None, name: str, directory: Path) -> None:
    """An operator, who may list, create and end jobs, and drain switches."""
    holder = Holder(name, Claims(roles=frozenset({OPERATOR})))
    _issue(ca_directory, holder, directory, days or DAYS_DEFAULT[OPERATOR])


def _serving(role: str, help_text: str) -> None:
    @issue.command(name=role, help=help_text)
    @_common_options
    @click.option("--address", "addresses", multiple=True, metavar="IP", help="Where it is reached. Repeatable.")
    @_dns_option
    def command(
        ca_directory: Path,
        days: int | None,
        name: str,
        directory: Path,
        addresses: tuple[str, ...],
        dns_names: tuple[str, ...],
    ) -> None:
        claims = Claims(roles=frozenset({role}))
        holder = Holder(name, claims, _with_local(addresses), _with_local_names(dns_names))
        _issue(ca_directory, holder, directory, days or DAYS_DEFAULT[role])


_serving(CONTROLLER, "A controller, or a standby. `wiresum switch` with its own join service is one too.")
_serving(SWITCH, "A switch's P4Runtime server.")


@ca.command(
    epilog="""\b
Examples:
  wiresum ca renew --ca pki pki/worker pki/controller
"""
)
@_ca_option
@click.option("--days", type=click.IntRange(1, DAYS_MAX), help="How long it holds.  [default: as long as before]")
@click.argument("directories", nargs=-1, required=True, type=DirectoryPath)
def renew(ca_directory: Path, days: int | None, directories: tuple[Path, ...]) -> None:
    """Give TLS directories new keys and certificates, with what they said before.

    A controller or switch uses them from the next connection on, without being restarted.
    """
    with _explained():
        authority = Authority.open(ca_directory)
        for directory in directories:
            _say(authority.renew(directory, days))


@ca.command(
    epilog="""\b
Examples:
  wiresum ca revoke --ca pki pki/worker           # the certificate in that directory
  wiresum ca revoke --ca pki vision               # all that the holder of that name has
  cp pki/ca.crl /etc/wiresum/tls/                 # on every controller's and switch's host
"""
)
@_ca_option
@click.argument("certificates", nargs=-1, required=True, metavar="DIRECTORY|NAME|SERIAL...")
def revoke(ca_directory: Path, certificates: tuple[str, ...]) -> None:
    """Take certificates back before they expire.

    The list of all that were revoked is ca.crl beside the authority's key. Put it beside ca.crt into the TLS
    directories of controllers and switches: within a second or two they refuse every call of those who were revoked,
    and end the jobs that these are in. No restart is needed.
    """
    with _explained():
        authority = Authority.open(ca_directory)
        found = {what: authority.issued(what) for what in certificates}
        for what, issued in found.items():
            if not issued:
                raise AuthorityError(
                    f"{ca_directory} has signed nothing for {what!r}, nor is that a TLS directory: "
                    f"{ca_directory / ISSUED_FILE} lists names and serials"
                )
        revoked = [certificate for issued in found.values() for certificate in issued]
        count = authority.revoke(revoked)
    for certificate in revoked:
        click.echo(
            f"{certificate.name!r}, serial {certificate.serial}, until {certificate.expires_at:%Y-%m-%d}: revoked"
        )
    click.echo(
        f"{ca_directory / REVOKED_FILE} lists {count} now: copy it into the TLS directory of each controller and switch"
    )


@ca.command()
@click.argument("directory", type=DirectoryPath)
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
def show(directory: Path, as_json: bool) -> None:
    """Show the certificates in a directory and in the directories right below."""
    with _explained():
        paths = sorted({*directory.glob("*.crt"), *directory.glob(f"*/{CERTIFICATE_FILE}")})
        if not paths:
            raise AuthorityError(f"there is no certificate in {directory}, nor in the directories below it")
        found = [certificates.show(path) for path in paths]
    if as_json:
        click.echo(json.dumps([_as_dict(shown) for shown in found], indent=2))
        return
    for shown in found:
        _say(shown)
        _say_problem(shown)


def _issue(ca_directory: Path, holder: Holder, directory: Path, days: int) -> None:
    with _explained():
        _say(Authority.open(ca_directory).issue(holder, directory, days))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except AuthorityError as error:
        raise click.ClickException(str(error)) from None


def _say(shown: Shown) -> None:
    left = shown.expires_at - datetime.now(timezone.utc)
    state = f"{left.days} days left" if left.total_seconds() > 0 else "EXPIRED"
    click.echo(f"{shown.path}: {shown.holder.name!r}, until {shown.expires_at:%Y-%m-%d} ({state})")
    for line in (*shown.holder.claims.uris(), *shown.holder.addresses, *shown.holder.dns_names):
        click.echo(f"    {line}")


def _say_problem(shown: Shown) -> None:
    """Checks a TLS directory as its user will, and prints the problem."""
    if shown.path.name != CERTIFICATE_FILE:
        return
    try:
        load(shown.path.parent, serving=bool(shown.holder.claims.roles & SERVING_ROLES))
    except CredentialsError as error:
        click.echo(f"    cannot be used: {error}")


def _as_dict(shown: Shown) -> dict[str, object]:
    return {
        "path": str(shown.path),
        "name": shown.holder.name,
        "serial": shown.serial,
        "signed_by": shown.signed_by,
        "roles": sorted(shown.holder.claims.roles),
        "jobs": list(shown.holder.claims.jobs),
        "tenants": list(shown.holder.claims.tenants),
        "addresses": list(shown.holder.addresses),
        "dns_names": list(shown.holder.dns_names),
        "begins": shown.begins_at.isoformat(),
        "expires": shown.expires_at.isoformat(),
    }


def _with_local(addresses: tuple[str, ...]) -> tuple[str, ...]:
    return (*LOCAL_ADDRESSES, *(address for address in addresses if address not in LOCAL_ADDRESSES))


def _with_local_names(dns_names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("localhost", socket.gethostname(), *dns_names)))
