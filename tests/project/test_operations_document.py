"""docs/operations.md has the limits and headers of the code; documents name existing properties only."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest
from conftest import ROOT

import run
from handlers import base, listener
from handlers.charts import handler as charts
from handlers.http import body_limit, head_limit, sse
from handlers.mcp import handler as tools
from handlers.mcp import results, toolbox
from handlers.outbound import channels as channel_requests
from models import json_format, paging
from models.accounts import accounts
from models.charts.archives.tar_reader import MIB, ArchiveLimits
from models.outbound import channels
from models.outbound import rules as outbound_rules
from models.storage import store
from models.supervision import metrics
from models.tracker import queries, visibility
from supervisor import logging as our_log
from supervisor import maintenance
from supervisor.accounts import logins, passwords
from supervisor.charts import hub, repositories, workers
from supervisor.charts.helm import runner
from supervisor.charts.kube import client
from supervisor.http import client as fetcher
from supervisor.processes import event_writer
from supervisor.processes import metrics as metrics_history
from supervisor.processes import service as supervision
from supervisor.processes.logs import log_search
from supervisor.processes.process import health, instance
from supervisor.tracker import ingest
from supervisor.workers import confinement, pool

TEXT = (ROOT / "docs" / "operations.md").read_text()
LIMITS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]* \|$", TEXT[TEXT.index("## Limits") :], re.MULTILINE))
CODE: dict[str, tuple[float, ...]] = {
    "waiting for the head of a request, on an idle connection too": (run._HEADERS_TIMEOUT_SECONDS,),
    "waiting for a body": (run._BODY_TIMEOUT_SECONDS,),
    "a response that the client does not read": (listener._UNREAD_SECONDS,),
    "dropping the body of a refused request": (body_limit._DROP_SECONDS,),
    "a chart upload": (ArchiveLimits().packed / MIB + 1,),
    "open event streams": (sse.RESERVED_STREAMS,),
    "tool calls in progress or waiting": (toolbox.MAX_WAITING_CALLS,),
    "sessions of agents, of each transport": (tools.MAX_SESSIONS, tools.SESSION_IDLE_SECONDS),
    "a response to an agent; a result": (results.MAX_RESULT_BYTES / MIB, results.MAX_EVENT_BYTES),
    "body of JSON; with values of a chart or a CODEOWNERS file; its `,:[{` beyond 64 KiB": (
        json_format.SMALL_BODY_BYTES / 1024,
        charts.MAX_JSON_BYTES / MIB,
        json_format.MAX_STRUCTURE_BYTES,
    ),
    "query parameters; cookies; fields of a form": (head_limit.MAX_FIELDS,),
    "changes that wait for a failing store": (supervision._MAX_WAITING_EVENTS,),
    "waiting for the store before a response": (event_writer._ENSURE_STORED_SECONDS,),
    "samples, and minutes, of metrics of a process in memory": (metrics.MAX_SAMPLES, metrics.MEMORY_MINUTES),
    "points and starts of a reply with metrics": (metrics.MAX_POINTS, metrics_history.MAX_STARTS),
    "a page of events": (paging.MAX_PAGE_SIZE,),
    "a query": (store.MAX_QUERY_SECONDS,),
    "searches of logs at once; that wait; CPU time of one": (
        1,
        log_search.MAX_QUEUED_SEARCHES,
        log_search._MAX_CPU_SECONDS,
    ),
    "health probes over HTTP at once": (health._MAX_CONCURRENT_PROBES,),
    "standard error reported for a process that failed to start": (instance._MAX_STDERR_BYTES / 1024,),
    "names and addresses kept for that": (logins.MAX_KEYS,),
    "logins checked at once; waiting; of one address": (
        passwords.MAX_CONCURRENT_LOGINS,
        passwords.MAX_WAITING_LOGINS,
        passwords.MAX_LOGINS_OF_ADDRESS,
    ),
    "waiting password changes of accounts": (passwords.MAX_WAITING_CHANGES,),
    "a password": (accounts.MIN_PASSWORD_LENGTH, accounts.MAX_PASSWORD_LENGTH),
    "tokens that are not revoked, and sessions, of an account": (accounts.MAX_TOKENS_OF_ACCOUNT,),
    "uploads that are read at once; that wait": (ingest.MAX_QUEUED_UPLOADS,),
    "a worker process: its memory; CPU time and time of an upload; its jobs; the memory it may keep": (
        confinement.MAX_MEMORY_BYTES / MIB,
        ingest._MAX_READ_CPU_SECONDS,
        ingest._MAX_READ_SECONDS,
        pool.MAX_JOBS,
        pool.MAX_IDLE_BYTES / MIB,
    ),
    "storing an upload": (ingest._STORE_SECONDS,),
    "projects in a list; suites, failures and files of a run in a response": (
        visibility.MAX_PROJECTS,
        queries.MAX_ROWS,
    ),
    "a helm process after SIGTERM": (runner.CHANGE_GRACE_SECONDS,),
    "an archive, packed; unpacked; its entries; one file": (
        ArchiveLimits().packed / MIB, ArchiveLimits().unpacked / MIB, ArchiveLimits().entries,
        ArchiveLimits().file / MIB,
    ),
    "a worker process of charts: its CPU time; the same for an index; a file, or answer, that it writes": (
        workers.MAX_CPU_SECONDS, repositories._MAX_INDEX_SECONDS, workers.MAX_FILE_BYTES / MIB,
    ),
    "fetches at once": (fetcher.MAX_CONCURRENT_FETCHES,),
    "storing an index": (repositories.STORE_TIMEOUT_SECONDS,),
    "connections to a cluster": (client.MAX_CONNECTIONS,),
    "connecting to a cluster; a response of it": (client.CONNECT_SECONDS, client.RESPONSE_SECONDS),
    "cached responses of the hub": (hub.MAX_CACHED_SEARCHES, hub.CACHE_SECONDS),
    "channels, and rules, of the server or a project; recipients of a mail; tests of a channel": (
        channels.MAX_CHANNELS,
        outbound_rules.MAX_RULES,
        channels.MAX_RECIPIENTS,
        channel_requests._TESTS_PER_MINUTE,
    ),
    "unread lines of the server's log": (our_log._MAX_WAITING_LINES,),
    "delay of the event loop within the last ten seconds": (maintenance._STALLED_AFTER_SECONDS,),
}  # fmt: skip


def numbers(cell: str) -> list[float]:
    return [
        float(one.replace(",", ""))
        for one in re.findall(r"(?<![\w.])\d[\d,]*", re.sub(r"`[^`]*`( \([^)]*\))?", "", cell))
    ]


@pytest.mark.parametrize("what", CODE)
def test_documented_limits_equal_those_of_the_code(what: str) -> None:
    assert numbers(LIMITS[what]) == list(CODE[what])


def test_limits_without_a_comparison_are_properties() -> None:
    others = {what: bound for what, bound in LIMITS.items() if what not in CODE and numbers(bound)}
    assert set(others) <= {
        "What", "head of a request", "body of a form", "connections that wait to be accepted",
        "lines of a log in one response", "a change of a release", "threads",
    }  # fmt: skip


def test_the_documented_headers_are_those_of_pages() -> None:
    assert [name for name, value in base._PAGE_HEADERS.items() if f"{name}: {value}" not in TEXT] == []


# Properties

_spec = importlib.util.spec_from_file_location("configuration_tables", ROOT / ".ci" / "configuration.py")
assert _spec is not None
assert _spec.loader is not None
tables: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tables)

DEFAULTS = {one.path: one.default.strip("`") for table in tables.SECTIONS for one in tables.properties(table)}
NAMES = [str(file.relative_to(ROOT)) for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("name", NAMES)
def test_documented_properties_exist(name: str) -> None:
    documented = set(
        re.findall(r"`((?:server|supervisor|svc|tracker)\.[a-z][a-z.-]*[a-z])`?[:`]", (ROOT / name).read_text())
    )
    sections = {path.rpartition(".")[0] for path in DEFAULTS} | {path.split(".")[0] for path in DEFAULTS}
    above = {".".join(path.split(".")[:2]) for path in DEFAULTS}
    assert documented - DEFAULTS.keys() - sections - above - FILES == set()


FILES = {"tracker.db"}


def test_documented_defaults_of_limits_equal_those_of_the_code() -> None:
    documented = [one for bound in LIMITS.values() for one in re.findall(r"`([a-z.-]+)` \(([^)]*)\)", bound)]
    assert len(documented) > 20
    assert [one for one in documented if DEFAULTS[one[0]] not in (one[1], "none")] == []
