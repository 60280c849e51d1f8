"""Changes of a project's settings, visibility and members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.accounts import accounts, permissions
from models.accounts.accounts import User
from models.accounts.permissions import PROJECT_ROLES
from models.config import parsers, secret_files
from models.errors import Conflict, Invalid, NotFound
from models.tracker.forges.forge_links import repository, without_login
from models.tracker.tables import Project, reports

MAX_CHARACTERS = {"base_branch": 255, "repo_url": 1024, "forge_repo": 1024}
SOURCE_MODES = ("off", "upload", "forge")
_BOOLEANS = {"true": True, "false": False}


def read(form: Mapping[str, str]) -> dict[str, Any]:
    """New values by column, of the fields that a form has; blank restores the global setting.

    Raises `Invalid`, which names the field.
    """
    readers = {
        "base_branch": _line,
        "repo_url": _url,
        "min_line_coverage": _percent,
        "max_coverage_drop_pct": _percent,
        "fail_on_new_failures": _boolean,
        "required_flags": _listed_flags,
        "max_test_drop_pct": _percent,
        "fail_on_any_failure": _boolean,
    }
    return {
        name: reader(name, form[name].strip()) if form[name].strip() else None
        for name, reader in readers.items()
        if name in form
    }


_BOOLEAN_COLUMNS = {
    "fail_on_new_failures", "fail_on_no_tests", "fail_on_missing_coverage", "aggregate_flags", "fail_on_any_failure",
}  # fmt: skip
_FLAG_COLUMNS = {"carry_forward_flags", "required_flags"}
MAX_PATCH_LINES = 10**9
MAX_LISTED_FLAGS = 100
MAX_INCREASE_PCT = 10_000
MAX_CARRY_SECONDS = 10 * 365 * 86_400


def read_token(value: Any) -> str | None:
    """A token from JSON or a form; None removes it. Raises `Invalid` without the token."""
    if value is not None and not isinstance(value, str):
        raise Invalid("forgeToken must be text or null")
    try:
        return None if value is None else secret_files.check_token(value)
    except parsers.ValidationError as why:
        raise Invalid(f"forgeToken {why}") from None


def read_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """New values by column, from JSON values by column; null restores the global setting.

    Raises `Invalid`, which names the field.
    """
    return {name: None if value is None else _read_value(name, value) for name, value in values.items()}


def _read_value(name: str, value: Any) -> Any:
    if name in _BOOLEAN_COLUMNS:
        if not isinstance(value, bool):
            raise Invalid(f"{name} must be true, false or null")
        return value
    if name in _TEXTS:
        if not isinstance(value, str) or not value.strip():
            raise Invalid(f"{name} must be text or null")
        return _TEXTS[name](name, value.strip())
    if name == "source_mode":
        if value not in SOURCE_MODES:
            raise Invalid(f"{name} must be one of {', '.join(SOURCE_MODES)}, or null")
        return value
    if name in _FLAG_COLUMNS:
        return _flags(name, value)
    highest = {
        "min_patch_lines": MAX_PATCH_LINES,
        "carry_forward_max_age": MAX_CARRY_SECONDS,
        "perf_max_latency_increase_pct": MAX_INCREASE_PCT,
    }.get(name, 100)
    is_number = isinstance(value, int) or (isinstance(value, float) and name != "min_patch_lines")
    if isinstance(value, bool) or not is_number or not 0 <= value <= highest:
        raise Invalid(f"{name} must be a number from 0 to {highest}, or null")
    return value if name == "min_patch_lines" else float(value)


def _flags(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_LISTED_FLAGS:
        raise Invalid(f"{name} must be a list of at most {MAX_LISTED_FLAGS} flags, or null")
    try:
        return [parsers.flag_name(flag) if isinstance(flag, str) else parsers.flag_name("") for flag in value]
    except parsers.ValidationError as error:
        raise Invalid(f"{name}: {error}") from None


def _listed_flags(name: str, text: str) -> list[str]:
    return _flags(name, [flag.strip() for flag in text.split(",") if flag.strip()])


def _line(name: str, text: str) -> str:
    if len(text) > MAX_CHARACTERS[name] or not text.isprintable():
        raise Invalid(f"{name} must have at most {MAX_CHARACTERS[name]} characters, all of them printable")
    return text


def _url(name: str, text: str) -> str:
    try:
        return without_login(parsers.url(_line(name, text)))
    except parsers.ValidationError as error:
        raise Invalid(f"{name} {error}") from None


def _repository(name: str, text: str) -> str:
    if repository(_line(name, text)) is None:
        raise Invalid(f"{name} must be the https, ssh or user@host:path URL of a repository")
    if "://" in text and not text.startswith("ssh") and "@" in text.split("/")[2]:
        raise Invalid(f"{name} must have no username or password")
    return text


def _percent(name: str, text: str) -> float:
    try:
        return parsers.between(0.0, 100.0)(parsers.number(text))
    except parsers.ValidationError as error:
        raise Invalid(f"{name} {error}") from None


def _boolean(name: str, text: str) -> bool:
    if text not in _BOOLEANS:
        raise Invalid(f"{name} must be true or false")
    return _BOOLEANS[text]


_TEXTS = {"base_branch": _line, "repo_url": _url, "forge_repo": _repository}


def change(project: Project, columns: Mapping[str, Any]) -> None:
    """Stores what `read` returned."""
    if columns:
        Project.update(**columns).where(Project.id == project.id).execute()


def set_visibility(project: Project, visibility: str) -> None:
    """Makes a project PUBLIC or PRIVATE. Raises `Invalid`."""
    if visibility not in ("PUBLIC", "PRIVATE"):
        raise Invalid("visibility must be PUBLIC or PRIVATE")
    Project.update(visibility=visibility).where(Project.id == project.id).execute()


def grant(project: Project, username: str, role: str, by: User, now: int) -> None:
    """Makes an account a member, or changes its role. Raises `Invalid`, `Conflict`."""
    if role not in PROJECT_ROLES:
        raise Invalid(f"role must be one of {', '.join(PROJECT_ROLES)}")
    with reports.atomic():
        user = accounts.user_named(username)
        if user is None:
            raise Invalid(f"there is no user {username}")
        if role != "OWNER":
            _keep_an_owner(project, user.id, by)
        permissions.grant(project.id, user.id, role, now)


def remove(project: Project, user_id: int, by: User) -> None:
    """Ends a membership in this project. Raises `NotFound`, `Conflict`."""
    with reports.atomic():
        _keep_an_owner(project, user_id, by)
        if not permissions.remove_member(project.id, user_id):
            raise NotFound("there is no such member")


def _keep_an_owner(project: Project, without: int, by: User) -> None:
    """Raises `Conflict` where only an ADMIN could own the project afterwards, unless `by` is one."""
    owners = {user.id for user, role in permissions.members_of(project.id) if role == "OWNER"}
    if owners == {without} and not by.is_admin:
        raise Conflict("a project needs an OWNER: make another member OWNER first")
