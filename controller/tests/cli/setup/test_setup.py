"""`wiresum setup` writes files of a host; here they are in a temporary folder."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wiresum.cli.setup import plan, setup
from wiresum.cli.setup.steps import File, Host, SetupError
from wiresum.controller import config
from wiresum.controller.p4runtime import desired, targets_of
from wiresum.controller.security.authority import Authority, Holder
from wiresum.controller.security.names import Claims
from wiresum_lab import REPOSITORY
from wiresum_lab.patience import PATIENCE_S

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="needs root and `useradd`, to make users"
)
PROGRAM = "/opt/wiresum/bin/wiresum"
DEPLOY = REPOSITORY / "controller/deploy"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority.create(folder / "ca", "test")
    for role in ("controller", "switch", "worker"):
        holder = Holder(role, Claims(roles=frozenset({role})), () if role == "worker" else ("10.0.0.1", "10.0.0.5"))
        authority.issue(holder, folder / role, 30)
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with the user who trains, and wiresum where the units expect it."""
    monkeypatch.setattr("wiresum.cli.setup.command._program", lambda: PROGRAM)
    monkeypatch.setattr("wiresum.cli.setup.command._check_homes", lambda: None)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nalice:x:1000:\n")
    for name in ("shadow", "gshadow"):
        (tmp_path / "etc" / name).touch(mode=0o600)
    return tmp_path


def run(root: Path, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(setup, [*arguments, "--root", str(root)], input=stdin)


def done(root: Path, *arguments: str, stdin: bytes = b"") -> str:
    result = run(root, *arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def owner_and_mode(root: Path, path: str) -> tuple[str, str, str]:
    """Owner, group and mode of a file."""
    names = {
        database: {int(row.split(":")[2]): row.split(":")[0] for row in (root / "etc" / database).read_text().split()}
        for database in ("passwd", "group")
    }
    status = (root / path).stat()
    return names["passwd"][status.st_uid], names["group"][status.st_gid], f"{stat.S_IMODE(status.st_mode):04o}"


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


@needs_root
def test_a_worker_gets_an_environment_and_a_certificate_that_its_trainers_can_read(root: Path, pki: Path) -> None:
    output = done(root, "worker", "--switch", "10.0.0.5", "--user", "alice", "--tls", str(pki / "worker"))
    assert owner_and_mode(root, "etc/wiresum/worker") == ("root", "wiresum", "0750")
    assert owner_and_mode(root, "etc/wiresum/worker/tls.key") == ("root", "wiresum", "0640")
    assert (root / "etc/wiresum/worker/tls.key").read_bytes() == (pki / "worker/tls.key").read_bytes()
    assert "wiresum:x:" in (root / "etc/group").read_text()
    assert ":alice\n" in (root / "etc/group").read_text()
    shell = f". {root}/etc/profile.d/wiresum.sh && echo $WIRESUM_SWITCH $WIRESUM_TLS"
    said = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
    assert said == "10.0.0.5 /etc/wiresum/worker\n"
    assert "net.core.rmem_max = 8388608" in (root / "etc/sysctl.d/60-wiresum.conf").read_text()
    assert str((root / "usr/local/bin/wiresum").readlink()) == PROGRAM
    assert "let through: UDP from the switches' ports 43488-43503" in output
    assert "left to you: wiresum doctor, once that system runs" in output


def test_larger_socket_buffers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    have = dict.fromkeys(plan.BUFFERS.least, 16 << 20)
    monkeypatch.setattr("wiresum.cli.setup.steps._setting", have.get)
    assert plan.BUFFERS.is_so(Host())
    have["net.core.wmem_max"] = 212992
    assert not plan.BUFFERS.is_so(Host())
    assert plan.BUFFERS.lacking() == {"net.core.wmem_max": 212992}


@needs_root
def test_a_switch_gets_its_unit_and_options(root: Path, pki: Path) -> None:
    arguments = ["switch", "--address", "10.0.0.1", "--p4runtime", "--option=--mtu=9000", "--tls", str(pki / "switch")]
    output = done(root, *arguments)
    assert (
        "WIRESUM_SWITCH_OPTIONS=--p4runtime 10.0.0.1:9559 --tls /etc/wiresum/switch --mtu=9000\n"
        in (root / "etc/wiresum/switch.env").read_text()
    )
    unit = (root / "etc/systemd/system/wiresum-switch.service").read_text()
    assert f"ExecStart={PROGRAM} switch" in unit
    assert "left to you: systemctl enable --now wiresum-switch, once that system runs" in output


@needs_root
def test_a_controller_gets_a_valid_configuration(root: Path, pki: Path) -> None:
    arguments = ["controller", "--address", "10.0.0.5", "--switch", "soft1=10.0.0.1", "--tls", str(pki / "controller")]
    done(root, *arguments, "--switch", "soft2=10.0.0.2")
    loaded = config.load(root / "etc/wiresum/cluster.toml")
    assert [(switch.name, switch.p4runtime, switch.address) for switch in loaded.switches] == [
        ("soft1", "10.0.0.1:9559", "10.0.0.1"),
        ("soft2", "10.0.0.2:9559", "10.0.0.2"),
    ]
    (tenant,) = loaded.quotas
    room = desired.room(targets_of(loaded.switches)[0])
    assert (tenant.name, tenant.priority_max, tenant.switch_percent) == ("", 0, 50)
    assert tenant.slots == sum(switch.slots for switch in loaded.switches) // 2
    assert tenant.worker_threads == 2 * room["admit"] // 2
    assert loaded.listen == ("10.0.0.5", 43487)
    assert str(loaded.security.tls) == "/etc/wiresum/controller"
    assert owner_and_mode(root, "var/lib/wiresum") == ("wiresum", "wiresum", "0700")
    assert owner_and_mode(root, "etc/wiresum/cluster.toml") == ("root", "wiresum", "0640")


CONTROLLER = ["controller", "--address", "10.0.0.5", "--switch", "soft1=10.0.0.1", "--tls", "{pki}/controller"]
STANDBY = ["standby", "--address", "10.0.0.5", "--port", "43486", "--tls", "{pki}/controller"]


def in_pki(pki: Path, arguments: list[str]) -> list[str]:
    return [argument.format(pki=pki) for argument in arguments]


@needs_root
def test_a_standby_gets_the_controllers_configuration_with_an_address_of_its_own(root: Path, pki: Path) -> None:
    done(root, *in_pki(pki, CONTROLLER))
    output = done(root, *in_pki(pki, STANDBY))
    first, second = (config.load(root / "etc/wiresum" / name) for name in ("cluster.toml", "standby.toml"))
    security = dataclasses.replace(first.security, tls=Path("/etc/wiresum/standby"))
    metrics = ("127.0.0.1", 9488)
    assert second == dataclasses.replace(first, listen=("10.0.0.5", 43486), metrics=metrics, security=security)
    unit = (root / "etc/systemd/system/wiresum-standby.service").read_text()
    assert f"ExecStart={PROGRAM} controller --config /etc/wiresum/standby.toml --standby" in unit
    assert owner_and_mode(root, "etc/wiresum/standby.toml") == ("root", "wiresum", "0640")
    assert owner_and_mode(root, "etc/wiresum/standby/tls.key") == ("root", "wiresum", "0640")
    assert "WIRESUM_SWITCH=10.0.0.5:43487,10.0.0.5:43486" in output


@needs_root
def test_a_standby_of_any_configuration_differs_only_in_what_is_its_own(root: Path, pki: Path, tmp_path: Path) -> None:
    written = tmp_path / "mine.toml"
    written.write_text(
        '[controller]\nname = "mine"   # a comment\nlisten="10.0.0.1:43487"\nstate = "/var/lib/wiresum"\n\n'
        '[jobs]\nidle_s = 60\n\n[[switch]]\nname = "leaf"\nkind = "software"\ntls = "/etc/wiresum/controller"\n'
        'p4runtime = "10.0.0.2:9559"\naddress = "10.0.0.2"\n\n[[switch.host]]\nname = "a"\naddress = "10.0.0.9"\n'
    )
    done(
        root,
        *in_pki(pki, ["controller", "--address", "10.0.0.5", "--config", str(written), "--tls", "{pki}/controller"]),
    )
    done(root, *in_pki(pki, STANDBY))
    first, second = (config.load(root / "etc/wiresum" / name) for name in ("cluster.toml", "standby.toml"))
    assert second.security.tls == Path("/etc/wiresum/standby")
    assert (second.listen, second.metrics) == (("10.0.0.5", 43486), ("127.0.0.1", 9488))
    as_first = dataclasses.replace(second, listen=first.listen, metrics=first.metrics, security=first.security)
    assert as_first == first


@needs_root
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (["--port", "43487"], "listens at 10.0.0.5:43487, so its standby cannot listen at 10.0.0.5:43487"),
        (["--metrics", "127.0.0.1:9487"], "serves its figures at 127.0.0.1:9487, so its standby needs other --metrics"),
    ],
)
def test_a_standby_cannot_be_where_the_controller_is(root: Path, pki: Path, changed: list[str], complaint: str) -> None:
    done(root, *in_pki(pki, CONTROLLER))
    result = run(root, *in_pki(pki, STANDBY), *changed)
    assert result.exit_code == 1
    assert complaint in " ".join(result.output.split())


@needs_root
def test_a_standby_needs_a_controller(root: Path, pki: Path) -> None:
    result = run(root, *in_pki(pki, STANDBY))
    assert result.exit_code == 1
    assert "set up the controller of this host first" in result.output


@needs_root
@pytest.mark.parametrize("arguments", [CONTROLLER, ["switch", *CONTROLLER[1:3], "--tls", "{pki}/controller"]])
def test_hosts_with_services_are_offered_rules_for_the_firewall(root: Path, pki: Path, arguments: list[str]) -> None:
    output = done(root, *in_pki(pki, arguments))
    names = ["nftables.conf", *["nftables-data.conf"] * (arguments[0] == "switch")]
    assert {file.name for file in (root / "etc/wiresum").glob("nftables*")} == set(names)
    for name in names:
        assert (root / "etc/wiresum" / name).read_bytes() == (DEPLOY / name).read_bytes()
        assert f"left to you: nft -f /etc/wiresum/{name}, which " in output


@needs_root
def test_a_second_run_changes_nothing_and_keeps_edited_files(root: Path, pki: Path) -> None:
    arguments = ["controller", "--address", "10.0.0.5", "--switch", "soft1=10.0.0.1", "--tls", str(pki / "controller")]
    done(root, *arguments)
    before = everything(root)
    again = done(root, *arguments)
    assert everything(root) == before
    assert "made" not in again
    assert "made" not in done(root, *arguments[:-2]), "an existing valid certificate is kept"

    written = root / "etc/wiresum/cluster.toml"
    written.write_text(written.read_text() + "# mine\n")
    assert "kept      /etc/wiresum/cluster.toml (root:wiresum, 0640), which differs" in done(root, *arguments)
    assert written.read_text().endswith("# mine\n")
    done(root, *arguments, "--replace")
    assert not written.read_text().endswith("# mine\n")

    command = root / "usr/local/bin/wiresum"
    command.unlink()
    command.write_text("of another installation")
    assert "kept      /usr/local/bin/wiresum" in done(root, *arguments)
    done(root, *arguments, "--replace")
    assert str(command.readlink()) == PROGRAM

    unit = root / "etc/systemd/system/wiresum-controller.service"
    unit.write_text("of an older release")
    done(root, *arguments)
    assert "ExecStart=" in unit.read_text()


@needs_root
def test_wrong_permissions_are_corrected(root: Path, pki: Path) -> None:
    arguments = ["worker", "--switch", "10.0.0.5", "--tls", str(pki / "worker")]
    done(root, *arguments)
    (root / "etc/wiresum/worker/tls.key").chmod(0o644)
    os.chown(root / "etc/wiresum/worker/tls.key", 1000, 1000)
    assert "made      /etc/wiresum/worker/tls.key" in done(root, *arguments)
    assert owner_and_mode(root, "etc/wiresum/worker/tls.key") == ("root", "wiresum", "0640")


@pytest.mark.parametrize(
    "arguments",
    [
        ["worker", "--switch", "10.0.0.5,10.0.0.6", "--tls", "{pki}/worker"],
        ["switch", "--address", "10.0.0.1", "--tls", "{pki}/controller"],
        ["controller", "--address", "10.0.0.5", "--switch", "soft1=10.0.0.1", "--tls", "{pki}/controller"],
    ],
)
def test_a_dry_run_lists_all_changes_and_makes_none(
    root: Path, pki: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = everything(root)
    output = done(root, *(argument.format(pki=pki) for argument in arguments), "--dry-run")
    assert everything(root) == before
    assert "would be  the user wiresum" in output
    assert f"would be  /etc/wiresum/{arguments[0]}/tls.key (root:wiresum, 0640)" in output
    assert "PRIVATE" not in output
    assert "| " in output, "the configuration is shown"


@needs_root
def test_a_certificate_can_come_as_an_archive(root: Path, pki: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as made:
        made.add(pki / "worker", ".")
    done(root, "worker", "--switch", "10.0.0.5", "--tls", "-", stdin=archive.getvalue())
    assert (root / "etc/wiresum/worker/tls.crt").read_bytes() == (pki / "worker/tls.crt").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["worker", "--switch", "x", "--tls", "{pki}/switch"], "is a switch's, and this host is to be a worker"),
        (["switch", "--address", "10.0.0.9", "--p4runtime", "--tls", "{pki}/switch"], "and not for 10.0.0.9"),
        (["switch", "--address", "10.0.0.1", "--tls", "{pki}/switch"], "this host is to be a controller"),
        (["worker", "--switch", "x"], "`wiresum ca init` makes"),
        (["worker", "--switch", "x", "--tls", "{pki}"], "cannot read {pki}/ca.crt"),
        (["worker", "--switch", "x", "--tls", "-"], "is no tar archive"),
        (["worker", "--switch", "x; reboot", "--insecure"], "is not HOST:PORT"),
        (["controller", "--address", "10.0.0.5", "--insecure"], "either --switch"),
        (["controller", "--address", "10.0.0.5", "--switch", 'a"=10.0.0.1', "--insecure"], "is not NAME=ADDRESS"),
        (["worker", "--switch", "x", "--insecure", "--tls", "{pki}/worker"], "leave out --tls"),
    ],
)
def test_impossible_options_are_refused_before_any_change(
    root: Path, pki: Path, arguments: list[str], complaint: str
) -> None:
    before = everything(root)
    result = run(root, *(argument.format(pki=pki) for argument in arguments), "--dry-run", stdin=b"no archive")
    assert result.exit_code != 0
    assert complaint.format(pki=pki) in " ".join(result.output.split())
    assert everything(root) == before


def test_without_root_the_error_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run(root, "worker", "--switch", "x", "--insecure")
    assert result.exit_code == 1
    assert "run it as root (sudo), or try it with --dry-run" in result.output


def test_an_installation_that_services_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", f"{plan.HOMES[0]}alice/venv/bin/python")
    result = CliRunner().invoke(setup, ["switch", "--address", "10.0.0.1", "--insecure", "--dry-run"])
    assert result.exit_code == 1
    assert "alice/venv/bin/wiresum is in a home directory, which services cannot read" in result.output


def test_a_path_that_cannot_stand_in_a_unit_is_refused() -> None:
    with pytest.raises(SetupError, match="cannot stand in a unit"):
        plan.switch(plan.Common("/opt/my wiresum", {}), "10.0.0.1", p4runtime=True, options=[])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_with_the_path_of_this_installation(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("wiresum"))
    made = plan.switch(plan.Common(program, {}), "10.0.0.1", p4runtime=True, options=[])
    (unit,) = (step for step in made.steps if isinstance(step, File) and step.path.endswith(".service"))
    path = tmp_path / "wiresum-switch.service"
    path.write_bytes(unit.content)
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(path)], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert verified.stderr == ""
