"""The bridge to the SDK: a session that another request has ended is 404 and logs no error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from anyio import ClosedResourceError
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from handlers.base import Base
from handlers.mcp import sdk_server
from handlers.mcp.bridge import Exchange
from models.errors import NotFound


class Handler:
    """A double of the request handler, of which the bridge uses a few methods."""

    def __init__(self) -> None:
        self.request = HTTPServerRequest(
            start_line=RequestStartLine("POST", "/mcp", "HTTP/1.1"),
            headers=HTTPHeaders({"Host": "localhost:1"}),
            body=b"{}",
        )
        self.status = 0

    def set_status(self, status: int) -> None:
        self.status = status

    def clear_header(self, name: str) -> None:
        pass


@pytest.mark.parametrize(("error", "result"), [(ClosedResourceError, False), (ValueError, True)])
def test_only_faults_of_the_sdk_are_logged(
    error: type[Exception], result: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert sdk_server
    with caplog.at_level(logging.ERROR):
        try:
            raise error
        except error:
            logging.getLogger("mcp.server.streamable_http").exception("Error handling POST request")
    assert bool(caplog.records) is result


@pytest.mark.parametrize("begun", [False, True], ids=["before its answer", "after it began"])
def test_a_session_that_ended_meanwhile_is_404(begun: bool) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 202, "headers": []})
        raise ClosedResourceError

    handler = Handler()
    exchange = Exchange(cast("Base", handler), "", {})
    if begun:
        asyncio.run(exchange.run(application))
        assert handler.status == 202
    else:
        with pytest.raises(NotFound, match="session has ended"):
            asyncio.run(exchange.run(application))
