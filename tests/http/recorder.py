"""Records what a server answers to many requests of all services, to compare two commits.

    python tests/http/recorder.py record TREE FILE [REQUESTS]    answers of the source tree at TREE
    python tests/http/recorder.py compare FILE FILE              prints the differences; fails if there are any

The requests are derived from the OpenAPI document of TREE, or read from an earlier recording (REQUESTS): every
operation with good, bad and absent values of each input, by anonymous callers, an ADMIN and a token of scope INGEST,
and every page. Times, durations, ids of processes, ports and tokens are replaced by names. A recording is taken twice:
answers that differ between the two are compared by status only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

_GOOD: dict[str, list[str]] = {
    "select": ["web", "@none", "all", "web,!web"],
    "signal": ["URG", "23"],
    "to": ["main", "group"],
    "paused": ["true", "false", "TRUE"],
    "from": ["2026-11-22T10:00:00Z", "2026-11-22T10:00:00"],
    "since": ["2026-11-22", "2026-11-22T10:00:00Z", "2026-11-22T10:00:00 02:00"],
    "q": ["a", "%", "x" * 501],
    "minMs": ["0", "10", "9223372036854775807", "9223372036854775808", "+1"],
    "status": ["failed", "FAILED,error", "passed, nothing"],
    "flaky": ["true", "False", "yes"],
    "project": ["shop"],
    "commit": ["c0", "c1"],
    "branch": ["main", "other"],
    "flag": ["default"],
    "base": ["1"],
    "head": ["2"],
    "path": ["A.java", "com/example/A.java"],
    "name": ["web", "shop", "test0"],
    "className": ["com.example.A"],
    "limit": ["1", "0", "501", "-5", "007", "+2"],
    "cursor": ["W10", "WzFd", "not one"],
    "format": ["json", "csv", "ndjson", "CSV", "xml"],
    "in": ["tests", "failures", "runs"],
    "sort": ["name", "duration", "bad"],
    "sortBy": ["eventTime", "pid", "endTime", "bad"],
    "sortDirection": ["asc", "ASC", "up"],
    "size": ["1", "100", "101", "0"],
    "page": ["0", "3", "-1", "99999999999"],
    "lines": ["1", "10000", "10001", "0"],
    "stream": ["stdout", "stderr", "both"],
    "download": ["true", "1"],
    "backups": ["true", "no"],
    "step": ["5", "60", "0", "86401"],
    "version": ["0.1.0", "bad version"],
    "namespace": ["default", "Bad_Name"],
    "notices": ["maybe"],
    "dry-run": ["true", "1"],
}
_BAD = ["", " ", "000000000000000000000000500", "1e3", "\u0663", "null", "a\u00e9", "-1", "x" * 40]
_PATH = {
    "name": ["web", "idle", "missing", "a b"],
    "processName": ["web", "missing"],
    "status": ["running", "RUNNING", "bad"],
    "id": ["1", "2", "999999", "0", "-1", "x", "1" * 20, "01"],
    "projectId": ["1", "9", "x"],
    "ruleId": ["1", "9", "x", "1" * 20],
    "metric": ["coverage", "pass", "flaky", "bad"],
    "repository": ["here", "missing"],
    "chart": ["tint", "missing"],
}
_BODIES: dict[str, dict[str, Any]] = {
    "project_settings": {"baseBranch": "main", "minLineCoverage": 10, "failOnNewFailures": True},
    "flaky_say": {"className": "com.example.A", "name": "test0", "status": "QUARANTINED", "note": " why "},
    "triage_rule_add": {"name": "net", "category": "infrastructure", "pattern": "refused", "field": "any"},
    "owners_set": {"codeowners": "* @all\n", "rules": [{"pattern": "com.", "owner": "@x"}]},
    "run_finish": {"project": "shop", "runKey": "none"},
    "live_topics": {"add": ["status"], "remove": []},
}
_BAD_JSON = [None, "", " ", "x", "x" * 300, -1, 0, 5, 101, 1.5, 1e300, True, [], ["a"], [1], {}, {"a": 1}]
_RAW = [b"", b"[]", b"{", b'{"a": NaN}', b'"x"', b"\xff", b'{"unknownField": 1}', b'{"name": "\\u0000"}']
_PAGES = [
    "/", "/overview", "/processes", "/processes/web", "/processes/missing", "/processes/web/metrics", "/events",
    "/releases", "/repos", "/repos/here", "/repos/here/tint", "/hub", "/projects", "/projects/1", "/projects/9",
    "/projects/1/failures", "/projects/1/flaky", "/projects/1/perf", "/projects/1/search", "/projects/1/triage",
    "/projects/1/settings", "/projects/1/owners", "/projects/1/compare", "/projects/1/members", "/projects/1/runs",
    "/projects/1/test", "/runs/1", "/runs/2", "/runs/9", "/runs/1/coverage", "/runs/1/tests", "/compare", "/search",
    "/swagger-ui.html", "/v3/api-docs", "/login", "/profile", "/users", "/healthz", "/readyz", "/nothing", "/upload.py",
]  # fmt: skip
_PAGE_QUERIES = [
    "", "q=a", "page=2", "page=x", "sort=name", "sort=-name", "status=failed", "branch=main", "flag=default",
    "limit=5", "limit=x", "limit=0", "cursor=bad", "path=A.java", "base=1&head=2", "base=x&head=2", "range=6h&step=5",
    "from=x", "className=com.example.A&name=test0", "name=web", "size=7", "q=%00", "since=x", "since=2026-11-22",
    "operation=process_info", "next=/projects", "in=failures&q=a", "new=true", "owner=%40x", "category=none",
]  # fmt: skip
_FORMS = [
    ("/login", "username=a&password=b"), ("/processes", "verb=start&name=idle"), ("/processes", "verb=bad"),
    ("/projects", "name=other"), ("/projects/1/settings", "minLineCoverage=x"),
    ("/projects/1/settings", "baseBranch=main&failOnNewFailures=true"), ("/projects/1/triage", "name=&pattern=x"),
    ("/profile/tokens", "name=x&scope=BAD"), ("/profile/tokens", "name=x&expiresDays=0"),
    ("/users", "username=&role=X"),
    ("/profile", "displayName=x&email=y"), ("/logout", ""), ("/runs/1/delete", ""), ("/projects/1/flaky", "status=BAD"),
]  # fmt: skip

Request = dict[str, Any]


def requests_of(document: dict[str, Any]) -> list[Request]:
    """Every operation with good and bad inputs, and every page; destructive ones last."""
    found: list[Request] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found += _operation(path, method.upper(), operation)
    found += [_request("GET", f"{page}?{query}" if query else page) for page in _PAGES for query in _PAGE_QUERIES]
    found += [_request("GET", page, caller="admin") for page in _PAGES]
    found += [_form(path, form, caller) for path, form in _FORMS for caller in ("anonymous", "admin")]
    return sorted(found, key=lambda one: (one["method"] == "DELETE", one["method"] not in ("GET", "HEAD")))


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[Request]:
    parameters = operation["parameters"]
    places = {one["name"]: _PATH.get(one["name"], ["x"])[0] for one in parameters if one["in"] == "path"}
    queries = {one["name"]: one for one in parameters if one["in"] == "query"}
    needed = {name: _GOOD.get(name, ["x"])[0] for name, one in queries.items() if one["required"]}
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    identifier = operation["operationId"]
    body = _BODIES.get(identifier, dict.fromkeys(schema.get("required", ()), "x"))
    sent = json.dumps(body) if schema else ""

    def of(at: dict[str, str] = places, query: Any = needed, body: str = sent, **more: Any) -> Request:
        url = re.sub(r"\{(\w+)\}", lambda match: quote(at.get(match[1], "x"), safe=""), path)
        text = urlencode(query, doseq=True)
        return _request(method, f"{url}?{text}" if text else url, body, **more)

    for caller in ("anonymous", "admin", "poster"):
        yield of(caller=caller)
    if "charts" in operation["tags"]:  # helm and its network are slow
        return
    if operation["tags"][0] != "server":
        yield of(prefix=f"/{operation['tags'][0]}")
    yield of(accept="application/json")
    yield of(accept="application/yaml")
    yield _request("PATCH" if method != "PATCH" else "PUT", of()["url"])
    if method == "GET":
        yield _request("HEAD", of()["url"])
        yield _request("OPTIONS", of()["url"])
    for name in places:
        yield from (of(at={**places, name: value}, caller="admin") for value in _PATH.get(name, ["x", "y z"]))
    for name in queries:
        yield from (of(query={**needed, name: value}, caller="admin") for value in [*_GOOD.get(name, []), *_BAD])
        yield of(query={**needed, name: ["1", "2"]}, caller="admin")
        yield of(query={other: value for other, value in needed.items() if other != name}, caller="admin")
    yield of(query={**needed, "unknown": "1"}, caller="admin")
    if schema:
        for name in schema["properties"]:
            yield from (of(body=json.dumps({**body, name: value}), caller="admin") for value in _BAD_JSON)
            yield of(body=json.dumps({key: value for key, value in body.items() if key != name}), caller="admin")
        yield from (of(body=raw.decode("latin-1"), caller="admin") for raw in _RAW)


def _request(method: str, url: str, body: str = "", **more: Any) -> Request:
    return {"method": method, "url": url, "body": body, "caller": "anonymous", **more}


def _form(path: str, form: str, caller: str) -> Request:
    return _request("POST", path, form, caller=caller, form=True)


_STREAMS = ("/processes/stream", "/live", "/events/stream")
_VARYING = re.compile(
    r'("(?:pid|startTime|endTime|eventTime|timestamp|processRuntime|processUptime|cpuPercent|memoryBytes|createdAt|'
    r'availableMemory|at|time|since|checkedAt|lastUsedAt|expiresAt|lastSeenAt|nextRun|lastRun|cpuAvg|memoryAvg)":)'
    r'(?:"[^"]*"|[-0-9.e]+|null)'
)
_CHANGES = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms|KiB|MiB|GiB|TiB|KB|MB|GB)\b|\b(\d+[dhm] ?)+\b"), "AMOUNT"),
    (re.compile(r'(name="_xsrf" value=")[^"]*'), r"\1XSRF"),
    (re.compile(r"127\.0\.0\.1:\d+|localhost:\d+"), "HOST"),
    (re.compile(r"pilothouse_\d+"), "COOKIE"),
    (re.compile(r"/tmp/recorded[^/\"'&< ]*"), "FOLDER"),
]


_POINTS = re.compile(r'"points":\[[^\]]*\]')
"""The measured values of a process, of which there are none in the first minute."""


def _normal(text: str) -> str:
    text = _VARYING.sub(r'\1"*"', text)
    for pattern, name in _CHANGES:
        text = pattern.sub(name, text)
    return text


def _answer(port: int, request: Request, tokens: dict[str, str]) -> Any:
    headers = {"Accept": request["accept"]} if "accept" in request else {}
    if request["caller"] == "key":
        headers["X-API-Key"] = "the-key-of-the-charts"
    elif request["caller"] != "anonymous":
        headers["Authorization"] = f"Bearer {tokens[request['caller']]}"
    if request["body"]:
        headers["Content-Type"] = "application/x-www-form-urlencoded" if request.get("form") else "application/json"
    url = request.get("prefix", "") + request["url"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    began = time.monotonic()
    with contextlib.closing(connection):
        connection.request(request["method"], url, request["body"].encode("latin-1") or None, headers)
        response = connection.getresponse()
        named = [
            (name, _normal(value))
            for name, value in response.getheaders()
            if name not in ("Date", "Etag", "Set-Cookie", "Content-Length")
        ]
        answer = [response.status, sorted(named), _normal(response.read().decode("utf-8", "replace"))]
    if time.monotonic() - began > 1:
        print(f"slow: {request}", file=sys.stderr)
    return answer


def _recorded(requests: list[Request] | None, reach: str) -> tuple[list[Request], list[Any]]:
    import openapi_server  # of the tree that is recorded

    answers: list[Any] = []
    with (
        contextlib.suppress(AssertionError),  # `prepared_server` looks for errors in the log
        tempfile.TemporaryDirectory(prefix="recorded") as folder,
        openapi_server.prepared_server(Path(folder)) as prepared,
    ):
        tokens = {"admin": prepared.admin, "poster": prepared.poster}
        chosen = requests if requests is not None else requests_of(prepared.document())
        requests = [one for one in chosen if not one["url"].partition("?")[0].endswith(_STREAMS)]
        answers += [_answer(prepared.server.port, one, tokens) for one in requests]
        for error in re.findall(r"(?s)Traceback.*?\n\w[^\n]*", prepared.server.log.read_text()):
            print(error, file=sys.stderr)
    return requests or [], answers


def record(tree: str, file: str, earlier: str | None = None) -> None:
    root = Path(tree).resolve()
    sys.path[:0] = [str(root), *(str(path) for path in sorted((root / "tests").iterdir()) if path.is_dir())]
    sys.path.insert(0, str(root / "tests"))
    requests = json.loads(Path(earlier).read_text())["requests"] if earlier else None
    requests, first = _recorded(requests, tree)
    steady = [True] * len(first)
    if earlier is None:
        _, second = _recorded(requests, tree)
        steady = [one == other for one, other in zip(first, second, strict=True)]
    Path(file).write_text(json.dumps({"requests": requests, "answers": first, "steady": steady}))
    print(f"{len(first)} requests, {steady.count(False)} of them compared by status only")


def compare(one: str, other: str) -> int:
    old, new = (json.loads(Path(file).read_text()) for file in (one, other))
    count = 0
    for request, before, after, steady in zip(
        old["requests"], old["answers"], new["answers"], old["steady"], strict=True
    ):
        before, after = ([*one[:2], _POINTS.sub("POINTS", one[2])] for one in (before, after))
        if before != after and (steady or before[0] != after[0]):
            count += 1
            print(request, "\n  -", str(before)[:600], "\n  +", str(after)[:600])
    print(f"{count} of {len(old['requests'])} answers differ")
    return int(count > 0)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        sys.exit(compare(*sys.argv[2:]))
