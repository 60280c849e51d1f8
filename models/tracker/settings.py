"""The settings of a project, declared once, and changes of them, of its visibility and of its members.

`ProjectSettings` gives the fields of `PATCH /projects/{id}/settings`, those of the settings page, their JSON Schema and
the reader of each. What is null inherits the server's setting (`quality_gate.thresholds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from models.accounts import accounts, permissions
from models.accounts.accounts import User
from models.accounts.permissions import PROJECT_ROLES
from models.config import parsers, secret_files
from models.config.forge_checks import MAX_CONTEXT_CHARACTERS
from models.config.secret_files import MAX_TOKEN_CHARACTERS
from models.config.settings import SourceMode
from models.errors import Conflict, Invalid, NotFound
from models.inputs import UNSET, Input, InputKind, body, inputs
from models.json_format import http_message
from models.tracker.forge_reports.report_settings import COMMENTS, PUBLISH, STATUSES, UNTRUSTED
from models.tracker.forges.forge_links import repository, without_login
from models.tracker.tables import Project, reports

SOURCE_MODES = get_args(SourceMode)
_MAX_INCREASE_PCT = 10_000
_MAX_PATCH_LINES = 10**9
_MAX_CARRY_SECONDS = 10 * 365 * 86_400
_MAX_LISTED_FLAGS = 100
_MAX_BRANCH_CHARACTERS, _MAX_URL_CHARACTERS = 255, 1024

Reader = Callable[[str, Any], Any]
"""Reads a JSON value; takes the setting's name first. Raises `Invalid`, which names the setting."""


def _setting(title: str, about: str, read: Reader, type: str, **schema: Any) -> Any:
    """`title` is the label of the field in a form."""

    def read_nullable(name: str, value: Any) -> Any:
        return None if value is None else read(name, value)

    kind = InputKind({"title": title, "type": [type, "null"], **schema}, read_nullable, reads_null=True)
    return body(about, UNSET, kind=kind)


def _number(title: str, about: str, highest: int = 100, lowest: int = 0) -> Any:
    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            raise Invalid(f"{name} must be a number from {lowest} to {highest}, or null")
        return float(value)

    return _setting(title, about, read, "number", minimum=lowest, maximum=highest)


def _time(title: str, about: str, lowest: int) -> Any:
    """In JSON a number of seconds, in a form also with units."""
    return _number(title, f"In seconds; {about}", _MAX_CARRY_SECONDS, lowest)


def _count(title: str, about: str, highest: int) -> Any:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
            raise Invalid(f"{name} must be a number from 0 to {highest}, or null")
        return value

    return _setting(title, about, read, "integer", minimum=0, maximum=highest)


def _flag(title: str, about: str) -> Any:
    def read(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Invalid(f"{name} must be true, false or null")
        return value

    return _setting(title, about, read, "boolean")


def _flags(title: str, about: str) -> Any:
    def read(name: str, value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) > _MAX_LISTED_FLAGS:
            raise Invalid(f"{name} must be a list of at most {_MAX_LISTED_FLAGS} flags, or null")
        try:
            return [parsers.flag_name(flag if isinstance(flag, str) else "") for flag in value]
        except parsers.ValidationError as error:
            raise Invalid(f"{name}: {error}") from None

    return _setting(title, about, read, "array", items={"type": "string"})


def _text(title: str, about: str, highest: int, check: Callable[[str], str] = str) -> Any:
    """A line; `check` returns what is stored, and raises `ValidationError`."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or not (text := value.strip()):
            raise Invalid(f"{name} must be text or null")
        if len(text) > highest or not text.isprintable():
            raise Invalid(f"{name} must have at most {highest} characters, all of them printable")
        try:
            return check(text)
        except parsers.ValidationError as error:
            raise Invalid(f"{name} {error}") from None

    return _setting(title, about, read, "string", maxLength=highest)


def _url(text: str) -> str:
    return without_login(parsers.url(text))


def _repository(text: str) -> str:
    if repository(text) is None:
        raise parsers.ValidationError("must be the https, ssh or user@host:path URL of a repository")
    if "://" in text and not text.startswith("ssh") and "@" in text.split("/")[2]:
        raise parsers.ValidationError("must have no username or password")
    return text


def _choice(title: str, about: str, choices: Sequence[str]) -> Any:
    def read(name: str, value: Any) -> Any:
        if value not in choices:
            raise Invalid(f"{name} must be one of {', '.join(choices)}, or null")
        return value

    return _setting(title, about, read, "string", enum=[*choices, None])


def _read_token(name: str, value: Any) -> str:
    """The message must not show the token."""
    if not isinstance(value, str):
        raise Invalid(f"{name} must be text or null")
    try:
        return secret_files.check_token(value)
    except parsers.ValidationError as why:
        raise Invalid(f"{name} {why}") from None


@http_message
class ProjectSettings:
    """The settings that a request names, by column; the others are UNSET."""

    base_branch: Any = _text(
        "Base branch", "The branch whose newest complete run is the baseline", _MAX_BRANCH_CHARACTERS
    )
    repo_url: Any = _text("Repository", "The URL of the repository", _MAX_URL_CHARACTERS, _url)
    min_line_coverage: Any = _number("Minimum line coverage, %", "Less fails the gate")
    max_coverage_drop_pct: Any = _number("Maximum drop of coverage, points", "Percentage points that coverage may drop")
    fail_on_new_failures: Any = _flag("New failures fail the gate", "Whether new failures fail the gate")
    min_patch_coverage: Any = _number(
        "Minimum coverage of changed lines, %", "Less coverage of the changed lines fails the gate"
    )
    min_patch_lines: Any = _count(
        "Fewest changed lines that are judged", "Fewer changed lines than this pass", _MAX_PATCH_LINES
    )
    fail_on_no_tests: Any = _flag("A run without tests fails the gate", "Whether a run without tests fails the gate")
    fail_on_missing_coverage: Any = _flag(
        "A run without coverage fails the gate", "Whether a run without coverage fails the gate"
    )
    aggregate_flags: Any = _flag("All flags of a commit must pass", "Whether all flags of a commit must pass")
    carry_forward_flags: Any = _flags(
        "Flags whose coverage is carried forward", "Flags whose coverage is carried forward; `*`: all"
    )
    carry_forward_max_age: Any = _time("Oldest coverage that is carried forward", "older coverage is not carried", 0)
    required_flags: Any = _flags("Required flags", "Flags of which every commit must have a run")
    max_test_drop_pct: Any = _number(
        "Maximum drop of the number of tests, %", "A larger share of missing tests fails the gate"
    )
    fail_on_any_failure: Any = _flag("Any failure fails the gate", "Whether any failing test fails the gate")
    perf_max_latency_increase_pct: Any = _number(
        "Maximum increase of the latency, %",
        "A larger increase of the 95th percentile fails the gate",
        _MAX_INCREASE_PCT,
    )
    perf_max_throughput_drop_pct: Any = _number(
        "Maximum drop of the throughput, %", "A larger drop of the throughput fails the gate"
    )
    perf_max_error_pct: Any = _number("Maximum share of errors, %", "More errors of a label fail the gate")
    quarantine_after_flaky: Any = _count(
        "Quarantine a test that is flaky on so many commits",
        "A test that is flaky on so many commits is quarantined; 0: none",
        1000,
    )
    quarantine_within: Any = _time("Within this time", "commits before that do not count", 60)
    quarantine_expires: Any = _time("For this time", "how long a flaky test is quarantined", 60)
    quarantine_max_pct: Any = _number(
        "At most this share of the tests, %", "No flaky test is quarantined beyond this share of the tests"
    )
    source_mode: Any = _choice("Source", "Where source lines come from", SOURCE_MODES)
    forge_repo: Any = _text(
        "Confirmed repository",
        "The repository on a forge that files are read from for members, and that reports go to",
        _MAX_URL_CHARACTERS,
        _repository,
    )
    forge_token: Any = _setting(
        "Token",
        "The token for that forge; it is never shown", _read_token, "string",
        writeOnly=True, maxLength=MAX_TOKEN_CHARACTERS,
    )  # fmt: skip
    forge_reports_enabled: Any = _flag("Report commits", "Whether commits are reported to the forge")
    forge_reports_comment: Any = _choice("Comment on pull requests", "When a pull request gets a comment", COMMENTS)
    forge_reports_statuses: Any = _choice(
        "Statuses of a commit", "Whether a commit has a status for all flags, for each, or both", STATUSES
    )
    forge_reports_context: Any = _text("Name of the status", "The name of the status", MAX_CONTEXT_CHARACTERS)
    forge_reports_untrusted: Any = _choice(
        "Report of runs that are not trusted", "What is reported of runs that are not trusted", UNTRUSTED
    )
    forge_reports_publish: Any = _choice(
        "Status or check of a commit", "Whether a commit has a status, a check of a GitHub App, or both", PUBLISH
    )


FOR_WRITERS = (
    "base_branch", "repo_url", "min_line_coverage", "max_coverage_drop_pct", "fail_on_new_failures", "required_flags",
    "max_test_drop_pct", "fail_on_any_failure",
)  # fmt: skip
"""What the first form of the settings page has, which WRITE may change; all else needs OWNER."""
FOR_OWNERS = (
    "min_patch_coverage", "min_patch_lines", "fail_on_no_tests", "fail_on_missing_coverage", "aggregate_flags",
    "carry_forward_flags", "carry_forward_max_age", "perf_max_latency_increase_pct", "perf_max_throughput_drop_pct",
    "perf_max_error_pct", "quarantine_after_flaky", "quarantine_within", "quarantine_expires", "quarantine_max_pct",
)  # fmt: skip
"""What the form of further rules has."""
FORGE = (
    "source_mode", "forge_repo", "forge_token", "forge_reports_enabled", "forge_reports_comment",
    "forge_reports_statuses", "forge_reports_context", "forge_reports_untrusted",
    "forge_reports_publish",
)  # fmt: skip
"""What the form of the forge has."""
TIMES = ("carry_forward_max_age", "quarantine_within", "quarantine_expires")
"""Numbers of seconds, which a form also takes as `14d`."""


def named(request: ProjectSettings) -> dict[str, Any]:
    """The values that a request names, by column."""
    values = {declared.name: getattr(request, declared.name) for declared in inputs(ProjectSettings)}
    return {name: value for name, value in values.items() if value is not UNSET}


def read_form(form: Mapping[str, str], columns: tuple[str, ...]) -> dict[str, Any]:
    """New values of the `columns` that a form has; a blank text restores the server's setting.

    Raises `Invalid`, which names the field.
    """
    declared = [one for one in inputs(ProjectSettings) if one.name in columns and one.name in form]
    return {one.name: _read_text(one, form[one.name].strip()) for one in declared}


def _read_text(declared: Input, text: str) -> Any:
    """The JSON value that a text of a form stands for, read; a text that stands for none is refused as it is."""
    assert declared.kind is not None
    value: Any = text
    match declared.kind.schema["type"][0]:
        case "boolean":
            value = {"true": True, "false": False}.get(text, text)
        case "array":
            value = [entry.strip() for entry in text.split(",") if entry.strip()]
        case "number" | "integer":
            value = _number_of(text, parsers.seconds if declared.name in TIMES else parsers.number)
    return declared.kind.read(declared.name, value if text else None)


def _number_of(text: str, parse: Callable[[str], float]) -> float | str:
    try:
        number = parse(text)
    except parsers.ValidationError:
        return text
    return int(number) if number == int(number) else number


def change(project: Project, columns: Mapping[str, Any]) -> None:
    """Stores new values by column."""
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
