"""`meshnet certs`: make the authority of a mesh, and certificates for its processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshnet.cli import options

if TYPE_CHECKING:
    from meshnet.cli.certs.folder import AuthorityFolder

EXAMPLES = """
[bold]Examples[/bold]

  meshnet certs init

  meshnet certs issue node-1 --host 10.0.0.2      then copy certs/node-1 to that machine

  meshnet certs renew                             from a timer, once a day; then copy again

  meshnet certs revoke node-1
"""

Dir = Annotated[Path, typer.Option("--dir", help="The authority's directory; keep it safe.")]
Days = Annotated[
    float, typer.Option("--days", min=0.01, max=825, help="How long a certificate is good.")
]
Name = Annotated[str, typer.Argument(help="What the process is called.", show_default=False)]
DIR, DAYS = Path("certs"), 30.0


def certs_app() -> typer.Typer:
    """Return `meshnet certs`; its commands import cryptography when they run."""
    app = typer.Typer(
        help="Make the certificate authority of a mesh, and certificates for its processes.",
        epilog=EXAMPLES,
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    for command in (init, issue, renew, show, revoke, enrol):
        app.command()(command)
    return app


def token_app() -> typer.Typer:
    """Return `meshnet token`."""
    app = typer.Typer(help="Make join tokens.", no_args_is_help=True, rich_markup_mode="rich")
    app.callback()(lambda: None)
    app.command("create")(token)
    return app


def init(directory: Dir = DIR) -> None:
    """Make a new authority."""
    folder_of(directory).begin(now())
    print(f"{directory}/ca.key signs for this mesh: keep it on this machine")


def issue(
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Address or name by which others reach it. Repeatable."),
    ] = None,
    days: Days = DAYS,
    directory: Dir = DIR,
) -> None:
    """Make a key and a certificate for one process."""
    own = folder_of(directory).issue(name, host or (), now(), days)
    print(f"{own}: copy it to the machine of {name} and set MESHNET_TLS_DIR to it there")


def renew(
    everything: Annotated[bool, typer.Option("--all", help="Also what is good for long.")] = False,
    days: Days = DAYS,
    directory: Dir = DIR,
) -> None:
    """Issue again what has less than a third of its time left."""
    for name in folder_of(directory).renew(now(), days, everything=everything):
        print(f"{directory / name}")


def show(directory: Dir = DIR, as_json: options.Json = False) -> None:
    """Show what was issued, and until when it is good."""
    at = now()
    found = [
        {
            "name": each.name,
            "hosts": list(each.hosts),
            "ends": each.ends.isoformat(),
            "state": each.state(at),
            "serial": f"{each.certificate.serial_number:x}",
        }
        for each in folder_of(directory).issued()
    ]
    if as_json:
        options.print_json({"issued": found})
        return
    for each in found:
        print(f"{each['name']}  {each['state']}, ends {each['ends']}  {', '.join(each['hosts'])}")


def revoke(name: Name, directory: Dir = DIR) -> None:
    """Stop to stand for a process; copy revoked.pem to all others."""
    folder_of(directory).revoke(name, now())
    print(f"{directory}/revoked.pem: copy it into the tls_dir of every other process")


def enrol(
    url: Annotated[str, typer.Argument(help="A gateway that has the authority: https://…")],
    token: Annotated[str, typer.Argument(help="What `meshnet token create` told.")],
    to: Annotated[Path, typer.Option("--to", help="The tls_dir to fill.")] = Path("tls"),
) -> None:
    """Get a certificate by a join token; the key is made here and stays here."""
    folder_of(DIR)  # tells what is to be installed, if it is not
    from meshnet.cli.certs.enrolling import enrol

    enrol(url, token, to)
    print(f"{to}: set MESHNET_TLS_DIR to it")


def token(
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Address or name by which others reach it. Repeatable."),
    ] = None,
    ttl: Annotated[float, typer.Option("--ttl", min=1, max=10080, help="Minutes.")] = 60.0,
    directory: Dir = DIR,
) -> None:
    """Make a join token: who has it gets the certificate of NAME, until it ends."""
    folder = folder_of(directory)
    from meshnet.cli.certs.tokens import Invitation

    invitation = Invitation(name, tuple(host or ()))
    print(folder.invite(invitation, now(), timedelta(minutes=ttl)))


def folder_of(directory: Path) -> AuthorityFolder:
    """Raises MeshnetError where there is no cryptography."""
    from meshnet.core.vocabulary import MeshnetError

    try:
        from meshnet.cli.certs.folder import AuthorityFolder
    except ModuleNotFoundError as error:
        raise MeshnetError(
            f"meshnet certs needs {error.name}: pip install 'meshnet[tls]'"
        ) from None
    return AuthorityFolder(directory)


def now() -> datetime:
    return datetime.now(UTC)
