"""A response about a run that is too large for the cache."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import TIMEOUT_SECONDS, application, fetch
from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import IOLoop
from uploads import FORM, INGEST, form, junit

from handlers.app import Application
from handlers.http import compression
from handlers.tracker import base


@pytest.fixture
def app(io_loop: IOLoop, tmp_path: Path) -> Iterator[Application]:
    with application(io_loop, tmp_path) as made:
        made.settings["kept_answers"].max_bytes = 0
        yield made


@pytest.mark.gen_test(timeout=TIMEOUT_SECONDS)
async def test_large_response_is_compressed_once_outside_the_loop(
    http_client: AsyncHTTPClient, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def compress(body: bytes) -> bytes:
        threads.append(threading.current_thread())
        return compression.compress(body)

    monkeypatch.setattr(base, "compress", compress)
    reports = form([("project", "large"), ("junit", junit(20, 20))])
    posted = await http_client.fetch(base_url + INGEST, method="POST", body=reports, headers={"Content-Type": FORM})
    assert posted.code == 201
    response = await http_client.fetch(
        f"{base_url}/api/v1/runs/1", headers={"Accept-Encoding": "gzip"}, decompress_response=False
    )
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    plain = await fetch(http_client, f"{base_url}/api/v1/runs/1", "GET", {})
    assert gzip.decompress(response.body) == plain.body
