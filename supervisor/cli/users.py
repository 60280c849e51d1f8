"""`run.py user ...`: accounts from the command line, on the data directory, also while a server runs on it."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import peewee

from models.accounts import accounts
from models.accounts.accounts import User
from models.config import parsers
from models.config.settings import Config
from models.errors import CannotUse, Invalid, NotFound, Problem
from models.tracker.tables import reports
from supervisor.accounts import passwords
from supervisor.clock import Clock
from supervisor.tracker.store import open_store, store_location

_PATIENCE = 30.0
_SECOND = 1_000_000


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds what is to be said behind the verb `user`."""
    acts = parser.add_subparsers(dest="act", metavar="ACT", required=True)
    add = acts.add_parser("add", help="make an account; its password comes from the terminal or standard input")
    add.add_argument("name", metavar="NAME")
    add.add_argument("--admin", action="store_true", help="of role ADMIN")
    add.set_defaults(work=with_store("user", _add, where_none="tell"))
    passwd = acts.add_parser("passwd", help="set a password, from the terminal or standard input; ends all sessions")
    passwd.add_argument("name", metavar="NAME")
    passwd.set_defaults(work=with_store("user", _passwd, where_none="refuse"))
    token = acts.add_parser("token", help="make a token, and print it alone")
    token.add_argument("name", metavar="NAME")
    token.add_argument("--name", dest="label", default="ci", help="what the token is called (ci)")
    token.add_argument("--scope", choices=["FULL", "INGEST"], default="FULL", help="INGEST may only post reports")
    token.add_argument("--expires", type=_span, metavar="SPAN", help="after how long, such as 30d (never)")
    token.set_defaults(work=with_store("user", _token, where_none="refuse"))


def _span(raw: str) -> float:
    try:
        return parsers.some_time(parsers.seconds(raw))
    except parsers.ValidationError as unfit:
        raise argparse.ArgumentTypeError(str(unfit)) from None


def with_store(
    verb: str, act: Callable[[argparse.Namespace], None], where_none: Literal["make", "tell", "refuse"] = "make"
) -> Callable[[Config, argparse.Namespace], int]:
    """What a verb does on the open store, as argparse's `work`. Where there is none it makes one, and may tell so."""

    def work(settings: Config, asked: argparse.Namespace) -> int:
        """Returns the exit code: 0, or 1 with one line that says why."""
        data = Path(settings.server.data_dir)
        file = data / "tracker.db"
        try:
            is_new = not settings.server.database_url and not file.exists()
            if is_new and where_none == "refuse":
                raise NotFound(f"there is no store in {data}: is that the server's data directory (--data-dir)?")
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            open_store(file, settings.server.database_url)
            try:
                reports.be_patient(_PATIENCE)
                act(asked)
            finally:
                reports.close_all()
        except Problem as problem:
            return _failed(verb, problem.message)
        except CannotUse as problem:
            return _failed(verb, str(problem))
        except OSError as error:
            return _failed(verb, f"{error.filename or data}: {error.strerror}")
        except peewee.PeeweeException as error:
            return _failed(verb, f"{store_location(settings.server)}: {' '.join(str(error).split())}")
        except (KeyboardInterrupt, EOFError):
            return _failed(verb, "given up")
        if is_new and where_none == "tell":
            print(f"run.py {verb}: {data} had no store, so one was made", file=sys.stderr)
        return 0

    return work


def _failed(verb: str, why: str) -> int:
    print(f"run.py {verb}: {why}", file=sys.stderr)
    return 1


def _add(asked: argparse.Namespace) -> None:
    accounts.check_username(asked.name)
    kept = passwords.hashed(_password(asked.name))
    made = accounts.create_user(asked.name, kept, "ADMIN" if asked.admin else "USER", Clock().now())
    print(f"there is a user {made.username} ({made.role})")


def _passwd(asked: argparse.Namespace) -> None:
    user = _known(asked.name)
    accounts.set_password(user.id, passwords.hashed(_password(user.username)))
    print(f"the password of {user.username} is set; its sessions have ended")


def _token(asked: argparse.Namespace) -> None:
    now = Clock().now()
    expires = None if asked.expires is None else now + int(asked.expires * _SECOND)
    print(accounts.create_token(_known(asked.name).id, asked.label, asked.scope, expires, now))


def _known(name: str) -> User:
    user = accounts.user_named(name)
    if user is None:
        raise NotFound(f"there is no user {name}")
    return user


def _password(name: str) -> str:
    """Twice from the terminal, or one line of standard input. Raises `Invalid`."""
    if sys.stdin is not None and sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("once more: ") != password:
            raise Invalid("these are two passwords")
    else:
        try:
            password = sys.stdin.readline().removesuffix("\n").removesuffix("\r") if sys.stdin is not None else ""
        except UnicodeDecodeError:
            raise Invalid("a password is valid UTF-8 without NUL") from None
    accounts.check_password(password)
    return password
