"""The README of a chart is rendered, as a safe subset and in a worker process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chart_servers import FULL, chart_archive, post_json, web_server
from conftest import Server, wait_for
from http_checks import running_server

README = """# shop

A *shop*, see [its site](https://shop.example) and [values](values.yaml). ![logo](https://shop.example/logo.png)

<script>alert(1)</script>

| name | default |
|---|---|
| `replicas` | 1 |
"""


@contextlib.contextmanager
def server_with_charts(folder: Path, **svc: Any) -> Iterator[Server]:
    with web_server() as repository:
        repository.serve(
            ("shop", "1.0.0", chart_archive("shop", "1.0.0", {"README.md": README})),
            ("slow", "1.0.0", chart_archive("slow", "1.0.0", {"README.md": "[" * 250_000})),
        )
        security = {**FULL, "allowed-hosts": [repository.host_port]}
        with running_server(folder, svc={"security": security, **svc}) as one:
            # A worker process may take longer to start than the time of a request allows.
            wait_for(lambda: post_json(one, "/repos", {"name": "lab", "url": repository.url}).status == 201)
            yield one


def test_a_readme_is_rendered_as_a_safe_subset(tmp_path: Path) -> None:
    with server_with_charts(tmp_path) as server:
        page = server.get("/repositories/lab/shop").text
    article = page.partition('<article class="prose">')[2].partition("</article>")[0]
    assert '<h2 id="shop">shop</h2>' in article
    assert '<a href="https://shop.example" rel="noopener noreferrer nofollow">its site</a> and values. logo' in article
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in article
    assert "<td><code>replicas</code></td>" in article
    assert "<img" not in article


def test_a_readme_that_takes_too_long_is_shown_as_text(tmp_path: Path) -> None:
    with server_with_charts(tmp_path, work={"timeout": "1s"}) as server:
        page = server.get("/repositories/lab/slow").text
        assert ("[[[[[[" in page, "<article" in page) == (True, False)
        wait_for(lambda: "a README is shown as text: " in server.log.read_text())
