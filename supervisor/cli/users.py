"""`run.py user`: manages accounts in a data directory, also while a server runs on it."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import peewee

from models.accounts import accounts
from models.accounts.accounts import User
from models.config import parsers
from models.config.settings import Config
from models.errors import CannotUse, Invalid, NotFound, Problem
from models.times import SECOND
from models.tracker.tables import reports
from supervisor.accounts import passwords
from supervisor.clock import Clock
from supervisor.tracker.store import open_store, store_location

OnMissingStore: TypeAlias = Literal["create", "create silently", "refuse"]

BUSY_SECONDS = 30.0


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb `user`."""
    acts = parser.add_subparsers(dest="act", metavar="ACT", required=True)
    add = acts.add_parser("add", help="add an account; its password comes from the terminal or standard input")
    add.add_argument("name", metavar="NAME")
    add.add_argument("--admin", action="store_true", help="give it the role ADMIN")
    add.set_defaults(work=with_store("user", _add, missing="create"))
    passwd = acts.add_parser("passwd", help="set a password, from the terminal or standard input; ends all sessions")
    passwd.add_argument("name", metavar="NAME")
    passwd.set_defaults(work=with_store("user", _passwd, missing="refuse"))
    token = acts.add_parser("token", help="create a token and print it")
    token.add_argument("name", metavar="NAME")
    token.add_argument("--name", dest="label", default="ci", help="the name of the token (ci)")
    token.add_argument("--scope", choices=["FULL", "INGEST"], default="FULL", help="INGEST may only post reports")
    token.add_argument("--expires", type=_span, metavar="SPAN", help="its lifetime, such as 30d (unlimited)")
    token.set_defaults(work=with_store("user", _token, missing="refuse"))


def _span(raw: str) -> float:
    try:
        return parsers.some_time(parsers.seconds(raw))
    except parsers.ValidationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def with_store(
    verb: str, act: Callable[[argparse.Namespace], None], missing: OnMissingStore = "create silently"
) -> Callable[[Config, argparse.Namespace], int]:
    """A function for argparse's `work` that opens the store and calls `act`. `missing`: what to do without a store."""

    def work(settings: Config, arguments: argparse.Namespace) -> int:
        """Returns the exit code: 0, or 1 after one line with the reason."""
        data = Path(settings.server.data_dir)
        file = data / "tracker.db"
        try:
            is_new = not settings.server.database_url and not _exists(file)
            if is_new and missing == "refuse":
                raise NotFound(f"there is no store in {data}: is this the server's data directory (--data-dir)?")
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            open_store(file, settings.server.database_url)
            try:
                reports.set_lock_timeout(BUSY_SECONDS)
                act(arguments)
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
            return _failed(verb, "cancelled")
        if is_new and missing == "create":
            print(f"run.py {verb}: {data} had no store, so one was created", file=sys.stderr)
        return 0

    return work


def _exists(file: Path) -> bool:
    """Raises `OSError` where that cannot be determined; from Python 3.14 on `Path.exists` returns False then."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _failed(verb: str, why: str) -> int:
    print(f"run.py {verb}: {why}", file=sys.stderr)
    return 1


def _add(arguments: argparse.Namespace) -> None:
    accounts.check_username(arguments.name)
    hashed = passwords.hash_password(_password(arguments.name))
    user = accounts.create_user(arguments.name, hashed, "ADMIN" if arguments.admin else "USER", Clock().now())
    print(f"created user {user.username} ({user.role})")


def _passwd(arguments: argparse.Namespace) -> None:
    user = _existing_user(arguments.name)
    accounts.set_password(user.id, passwords.hash_password(_password(user.username)))
    print(f"the password of {user.username} is set; its sessions have ended")


def _token(arguments: argparse.Namespace) -> None:
    now = Clock().now()
    expires = None if arguments.expires is None else now + int(arguments.expires * SECOND)
    print(accounts.create_token(_existing_user(arguments.name).id, arguments.label, arguments.scope, expires, now))


def _existing_user(name: str) -> User:
    user = accounts.user_named(name)
    if user is None:
        raise NotFound(f"there is no user {name}")
    return user


def _password(name: str) -> str:
    """Reads a password: twice from the terminal, or one line of standard input. Raises `Invalid`."""
    if sys.stdin is not None and sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("repeat it: ") != password:
            raise Invalid("the two passwords differ")
    else:
        try:
            password = sys.stdin.readline().removesuffix("\n").removesuffix("\r") if sys.stdin is not None else ""
        except UnicodeDecodeError:
            raise Invalid("a password is valid UTF-8 without NUL") from None
    accounts.check_password(password)
    return password
