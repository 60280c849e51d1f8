"""The OpenAPI document is written off the loop, and requests at the same time share it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import TIMEOUT_SECONDS, application
from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import IOLoop

from handlers.app import Application
from handlers.openapi.document import InterfaceDocument


@pytest.fixture
def app(io_loop: IOLoop, tmp_path: Path) -> Iterator[Application]:
    with application(io_loop, tmp_path) as made:
        yield made


@pytest.mark.gen_test(timeout=TIMEOUT_SECONDS)
@pytest.mark.parametrize(("path", "most"), [("/v3/api-docs", 2), ("/v3/api-docs.yaml", 2), ("/swagger-ui.html", 8)])
async def test_the_document_is_not_written_on_the_loop(
    http_client: AsyncHTTPClient, base_url: str, monkeypatch: pytest.MonkeyPatch, path: str, most: int
) -> None:
    threads: list[threading.Thread] = []
    write = InterfaceDocument.write

    def written(document: InterfaceDocument, *arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return write(document, *arguments)

    monkeypatch.setattr(InterfaceDocument, "write", written)
    responses = await asyncio.gather(*(http_client.fetch(base_url + path) for _ in range(8)))
    assert {response.code for response in responses} == {200}
    assert len({response.body for response in responses}) == 1
    assert 1 <= len(threads) <= most
    assert threading.main_thread() not in threads
