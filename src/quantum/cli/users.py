"""`quantum users add|remove|list`: who may come by a user name and a password."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from quantum.cli.admin_api import AdminApi
from quantum.cli.admin_asking import ADMIN_DEFAULT, Admin, fail_told, telling
from quantum.cli.admin_client import parse_address
from quantum.cli.credentials import speaking
from quantum.cli.exits import Exit, fail
from quantum.config.live import USER_NAME, USER_PREFIX

app = typer.Typer(
    help="Users of a tenant: who may come by a user name and a password.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Tenant = Annotated[str, typer.Option(help="The tenant whose user it is.")]


@app.command()
@speaking
def add(
    name: Name,
    admin: Admin = ADMIN_DEFAULT,
    *,
    tenant: Tenant = "dev",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
) -> None:
    """Let a user come by a password, or give it another one. It counts within a second or two.

    Its access rules name it `user:NAME`. The password is asked for, hashed here (scrypt, and for
    SCRAM-SHA-256 and -512) and never sent; who may read the configuration sees that it is set.

    Example: quantum users add ann --tenant dev
    """
    from quantum.tenants.passwords import keep_password

    if not USER_NAME.fullmatch(name):
        fail("a name has 1 to 64 letters, digits, dots, dashes and underscores", Exit.USAGE)
    with telling():
        _held(AdminApi(_address(admin)), tenant)  # nobody types a password for nothing
    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    elif not sys.stdin.isatty():
        fail("there is no terminal to ask for the password: give --password-stdin", Exit.USAGE)
    else:
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    if not password:
        fail("an empty password lets everybody in: choose another", Exit.USAGE)
    kept = keep_password(password.encode())
    _change(admin, tenant, lambda document: {**document, USER_PREFIX + name: kept})
    typer.echo(f"{name} may connect to tenant {tenant}; access rules name it user:{name}")


@app.command()
@speaking
def remove(name: Name, admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "dev") -> None:
    """Let a user come no more; who is connected as it must go within a second or two.

    Example: quantum users remove ann --tenant dev

    Exit code 3: there is no such user.
    """
    key = USER_PREFIX + name

    def without(document: dict[str, Any]) -> dict[str, Any]:
        if key not in document:
            fail(f"tenant {tenant} has no user {name}", Exit.NOT_FOUND)
        return {each: value for each, value in document.items() if each != key}

    _change(admin, tenant, without)
    typer.echo(f"{name} is no user of tenant {tenant} any more")


@app.command("list")
@speaking
def list_users(admin: Admin = ADMIN_DEFAULT, *, tenant: Tenant = "dev") -> None:
    """List the users of a tenant, one line each.

    Example: quantum users list --tenant dev
    """
    with telling():
        _, document = _held(AdminApi(_address(admin)), tenant)
    for key in sorted(document):
        if key.startswith(USER_PREFIX):
            typer.echo(key.removeprefix(USER_PREFIX))


def _address(admin: str) -> Any:
    try:
        return parse_address(admin)
    except ValueError as error:
        fail(str(error), Exit.USAGE)


def _held(api: AdminApi, tenant: str) -> tuple[str, dict[str, Any]]:
    """Return the version and the document of a tenant's configuration."""
    told = api.ask("GET", "/v1/config", query={"scope": "Tenant", "name": tenant})
    if not told.is_done:
        fail_told(told)
    in_force = told.body.get("in_force")
    return told.body["version"], dict(in_force["document"]) if in_force else {}


def _change(admin: str, tenant: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    api = AdminApi(_address(admin))
    with telling():
        version, document = _held(api, tenant)
        body = {
            "scope": {"kind": "Tenant", "name": tenant},
            "expected_version": version,
            "document": change(document),
        }
        told = api.ask("PUT", "/v1/config", body=body)
    if not told.is_done:
        fail_told(told)
