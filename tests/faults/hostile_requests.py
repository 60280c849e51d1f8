"""Requests that any caller may send and that once stalled the event loop, or could. Each is a function of its size."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping

from attrs import field, frozen
from uploads import BOUNDARY, FORM, INGEST, junit

JSON = "application/json"
OK_REPORT = junit(passed=1)
_GZIP_LEVEL = 6


@frozen
class Hostile:
    """One request."""

    path: str
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(factory=dict, repr=False)


def upload(*parts: tuple[str, str | bytes], head: str = "") -> Hostile:
    """An upload to the project `hostile`."""
    sent = bytearray()
    for number, (name, content) in enumerate([("project", "hostile"), *parts]):
        file = "" if number == 0 else f'; filename="{name}{number}"'
        sent += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{head}\r\n'.encode()
        sent += content.encode() if isinstance(content, str) else content
        sent += b"\r\n"
    return Hostile(INGEST, bytes(sent + f"--{BOUNDARY}--\r\n".encode()), headers={"Content-Type": FORM})


def packed(text: str | bytes) -> bytes:
    return gzip.compress(text.encode() if isinstance(text, str) else text, _GZIP_LEVEL)


def as_json(path: str, text: str | bytes, method: str = "POST", **headers: str) -> Hostile:
    body = text.encode() if isinstance(text, str) else text
    return Hostile(path, body, method, {"Content-Type": JSON, **headers})


def get(path: str, **headers: str) -> Hostile:
    return Hostile(path, b"", "GET", {name.replace("_", "-"): value for name, value in headers.items()})


def _failures(message: str, count: int) -> str:
    case = "<testcase classname='A' name='t%d'><failure message='%s'>%s</failure></testcase>"
    return f"<testsuite>{''.join(case % (n, message, message) for n in range(count))}</testsuite>"


def _same_names(count: int) -> tuple[tuple[str, str], ...]:
    paths = "\n".join(f"{number}/a.py" for number in range(count))
    coverage = f"SF:z/{'q/' * 2000}a.py\nDA:1,1\nend_of_record\n" * 3
    return (
        ("junit", OK_REPORT),
        ("jacoco", coverage),
        ("paths", paths),
        ("diff", "--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"),
    )


def _attachments(references: int, parts: int) -> Hostile:
    names = "".join(f"[[ATTACHMENT|{n}/shot.png]]" for n in range(references))
    report = f"<testsuite><testcase classname='A' name='t'><system-out>{names}</system-out></testcase></testsuite>"
    return upload(("junit", report), *(("attachment", b"x") for _ in range(parts)))


def _tar(names: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for number in range(names):
            archive.addfile(tarfile.TarInfo(f"d/{number}.py"))
    return file.getvalue()


def _mixed(parts: int) -> Hostile:
    inner = "".join(f"--in\r\nContent-Disposition: file; filename=f{n}\r\n\r\nx\r\n" for n in range(parts))
    return upload(("junit", f"{inner}--in--\r\n"), head="Content-Type: multipart/mixed; boundary=in\r\n")


def _raw(body: bytes, boundary: str = BOUNDARY) -> Hostile:
    return Hostile(INGEST, body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})


_TABLE: Mapping[str, Callable[[], Hostile]] = {
    "signatures of 2,000 @": lambda: upload(("junit", packed(_failures("@" * 2000, 400)))),
    "TAP with lines of 8 MB": lambda: upload(("junit", packed(b"1..4\n" + (b"ok 1 " + b"- " * 4_000_000 + b"\n") * 4))),
    "go test with an array of a million": lambda: upload(
        ("junit", packed('{"Action":"run","a":[' + ",".join(["[]"] * 1_000_000) + "]}\n"))
    ),
    "a diff of 5 MB and paths of 16 MB": lambda: upload(
        ("junit", OK_REPORT),
        ("diff", b"--- a/x\n+++ b/x\n@@ -0,0 +1,900000 @@\n" + b"+abcd\n" * 830_000),
        ("paths", b"a\n" * 8_000_000),
    ),
    "50,000 paths of one name": lambda: upload(*_same_names(50_000)),
    "60,000 references to 500 attachments": lambda: _attachments(60_000, 500),
    "a selector of 60 KB": lambda: get("/api/v1/processes?select=" + "*a?" * 20_000),
    "1 MB of JSON to /runs/finish": lambda: as_json("/api/v1/runs/finish", "[" + "[]," * 333_000 + "[]]"),
    "1 MB of JSON to /charts/template": lambda: as_json("/api/v1/charts/template", '{"a":[' + "[]," * 333_000 + "[]]}"),
    "1 MB of JSON to /charts/create": lambda: as_json("/api/v1/charts/create", '{"name":"' + "x" * 1_000_000 + '"}'),
    "1 MB of JSON to /mcp": lambda: as_json(
        "/mcp", '{"a":[' + "{}," * 333_000 + "{}]}", Accept="application/json, text/event-stream"
    ),
}
"""The requests of the table in the specification."""

_MORE: Mapping[str, Callable[[], Hostile]] = {
    "selectors of 4 KB of wildcards": lambda: get("/api/v1/processes?select=" + ",".join(["*a?*b" * 50] * 15)),
    "7,000 query parameters": lambda: get("/api/v1/projects?" + "&".join(f"a{n}=1" for n in range(7_000))),
    "999 query parameters of escapes": lambda: get("/api/v1/projects?" + "&".join(["%41%42%43=%ff"] * 999)),
    "10,000 cookies": lambda: get("/", Cookie=";".join(["a=1"] * 10_000)),
    "a cookie of 60 KB of quotes": lambda: get("/", Cookie='a="' + '\\"' * 29_000 + '"'),
    "a cookie of octal escapes": lambda: get("/", Cookie='a="' + "\\101" * 14_000 + '"'),
    "Accept of 60 KB": lambda: get("/api/v1/projects", Accept=",".join(["text/html;q=0.1"] * 3_800)),
    "Accept-Encoding of 60 KB": lambda: get("/", Accept_Encoding=",".join(["gzip;q=0.1"] * 5_500)),
    "X-Forwarded-For of 60 KB": lambda: get("/", X_Forwarded_For=",".join(["1.2.3.4"] * 7_500)),
    "If-None-Match of 60 KB": lambda: get("/projects", If_None_Match=",".join(['W/"a"'] * 10_000)),
    "Range of 60 KB": lambda: get("/static/app.js", Range="bytes=" + ",".join(["0-1"] * 15_000)),
    "a token of 60 KB": lambda: get("/api/v1/projects", Authorization="Bearer plt_" + "a" * 60_000),
    "Basic credentials of 60 KB": lambda: get("/api/v1/projects", Authorization="Basic " + "YTph" * 15_000),
    "95 headers": lambda: get("/", **{f"X_{n}": "y" * 40 for n in range(95)}),
    "1,000 headers": lambda: get("/", **{f"X_{n}": "y" * 40 for n in range(1_000)}),
    "a search of 60 KB": lambda: get("/search?q=" + "%25_" * 15_000),
    "a name of a project of 60 KB": lambda: get("/api/v1/gate?branch=x&project=" + "%F0%9F%98%80" * 5_000),
    "a cursor of 60 KB": lambda: get("/api/v1/projects?cursor=" + "W1tb" * 15_000),
    "a path of 30,000 slashes": lambda: get("/" + "/" * 30_000),
    "a form of 64 KB": lambda: Hostile(
        "/login", b"username=" + b"%41" * 21_000, headers={"Content-Type": "application/x-www-form-urlencoded"}
    ),
    "a form of 15,000 fields": lambda: Hostile(
        "/login", b"&".join([b"a=1"] * 15_000), headers={"Content-Type": "application/x-www-form-urlencoded"}
    ),
    "nested JSON": lambda: as_json("/api/v1/runs/finish", "[" * 30_000),
    "JSON of one long number": lambda: as_json("/api/v1/runs/finish", '{"project":' + "9" * 60_000 + "}"),
    "JSON of escapes": lambda: as_json("/api/v1/runs/finish", '{"project":"' + "\\ud83d" * 10_000 + '"}'),
    "JSON of equal names": lambda: as_json("/api/v1/runs/finish", "{" + ",".join(['"a":1'] * 10_000) + "}"),
    "values of a chart of 900 KB": lambda: as_json(
        "/api/v1/charts/template", json.dumps({"chartRef": "x", "values": {"a": ["x" * 100] * 9_000}})
    ),
    "a call of a tool with 900 KB": lambda: as_json(
        "/mcp",
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x" * 900_000}}),
        Accept="application/json, text/event-stream",
    ),
    "a multipart body of 9,000 parts": lambda: upload(("junit", OK_REPORT), *[("note", "x")] * 9_000),
    "a part with 5,000 headers": lambda: upload(("junit", OK_REPORT), head="X-A: b\r\n" * 5_000),
    "a part with a header of 1 MB": lambda: upload(("junit", OK_REPORT), head=f"X-A: {'b' * 1_000_000}\r\n"),
    "a part with a header of 500,000 backslashes": lambda: upload(
        ("junit", OK_REPORT), head=f'X-B: "{chr(92) * 500_000}"\r\n'
    ),
    "a file name of 1 MB": lambda: _raw(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="junit"; filename="'.encode()
        + b"\\" * 1_000_000
        + f'"\r\n\r\n<testsuite/>\r\n--{BOUNDARY}--\r\n'.encode()
    ),
    "dashes and line breaks that are almost a boundary": lambda: _raw(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=junit; filename=a\r\n\r\n".encode()
        + f"\r\n--{BOUNDARY[:-1]}".encode() * 80_000
    ),
    "a preamble of 5 MB": lambda: _raw(b"-\r\n" * 1_700_000),
    "multipart within multipart": lambda: _mixed(1_000),
    "a Content-Type of 60 KB": lambda: Hostile(
        INGEST, b"x", headers={"Content-Type": "multipart/form-data; " + 'a="\\\\";' * 8_000}
    ),
    "XML of 200,000 attributes": lambda: upload(
        ("junit", "<testsuite " + " ".join(f"a{n}='1'" for n in range(200_000)) + "/>")
    ),
    "XML of one name of 4 MB": lambda: upload(("junit", f"<testsuite><{'a' * 4_000_000}/></testsuite>")),
    "XML of 60,000 cases": lambda: upload(
        ("junit", packed("<testsuite>" + "<testcase name='a'/>" * 60_000 + "</testsuite>"))
    ),
    "entities": lambda: upload(
        ("junit", "<!DOCTYPE a [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;'>]><testsuite name='&b;'/>")
    ),
    "200 MB of zeros as gzip": lambda: upload(("junit", packed(b"\0" * 200_000_000))),
    "gzip within gzip": lambda: upload(("junit", packed(packed(packed(b"x" * 50_000_000))))),
    "300,000 lines of LCOV": lambda: upload(("junit", OK_REPORT), ("jacoco", packed("SF:a\n" + "DA:1,1\n" * 300_000))),
    "a coverage line of 5 MB": lambda: upload(
        ("junit", OK_REPORT), ("jacoco", "SF:" + "../" * 1_700_000 + "a\nDA:1,1\n")
    ),
    "a source archive of 30,000 files": lambda: upload(("junit", OK_REPORT), ("source", _tar(30_000))),
    "CODEOWNERS of stars": lambda: upload(("junit", OK_REPORT), ("codeowners", "**/*a*/**/*b* @x\n" * 50_000)),
    "a CSV of performance of 1 MB": lambda: upload(("perf", b"timeStamp,elapsed,label\n" + b'1,1,"a""b"\n' * 100_000)),
    "a chart of 20,000 empty files": lambda: Hostile(
        "/api/v1/charts/show/upload",
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="chart"; filename="a.tgz"\r\n\r\n'.encode()
        + _tar(20_000)
        + f"\r\n--{BOUNDARY}--\r\n".encode(),
        headers={"Content-Type": FORM},
    ),
    "a chart of 60 MB of zeros": lambda: Hostile(
        "/api/v1/charts/show/upload",
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="chart"; filename="a.tgz"\r\n\r\n'.encode()
        + packed(b"\0" * 60_000_000)
        + f"\r\n--{BOUNDARY}--\r\n".encode(),
        headers={"Content-Type": FORM},
    ),
    "an unknown path of 45 KB": lambda: get("/api/v1/nowhere/" + "a,b" * 15_000),
    "a WebSocket with a key of 60 KB": lambda: get(
        "/api/v1/events", Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Key="a" * 60_000
    ),
}
"""Others."""

REQUESTS = {**_TABLE, **_MORE}
