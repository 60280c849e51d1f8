"""Responses and streams over TLS."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from pathlib import Path

import pytest
import trustme
from conftest import Serve, wait_for


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[trustme.CA, Path, Path]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(str(chain))
    issued.private_key_pem.write_to_path(str(key))
    return authority, chain, key


def test_responses_are_sent_over_tls(serve: Serve, certificate: tuple[trustme.CA, Path, Path]) -> None:
    authority, chain, key = certificate
    server = serve({"sleeper": {"command": "sleep 100"}}, server={"tls": {"certificate": str(chain), "key": str(key)}})
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", server.port, context=context)) as connection:
        connection.request("POST", "/api/v1/processes/start/sleeper")
        assert connection.getresponse().read().startswith(b'{"message"')
        connection.request("GET", "/api/v1/processes")
        assert json.loads(connection.getresponse().read())[0]["status"] == "running"
    assert f"https://127.0.0.1:{server.port}" in server.log.read_text()


def test_a_stream_is_sent_over_tls(serve: Serve, certificate: tuple[trustme.CA, Path, Path]) -> None:
    authority, chain, key = certificate
    server = serve(server={"tls": {"certificate": str(chain), "key": str(key)}})
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", server.port, context=context)) as connection:
        connection.request("GET", "/tracker/api/v1/events")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.readline() == b"event: connected\n"


@pytest.mark.parametrize("content", ["", "no certificate"])
def test_an_invalid_certificate_file_is_an_error_of_one_line(serve: Serve, tmp_path: Path, content: str) -> None:
    file = tmp_path / "chain.pem"
    file.write_text(content)
    server = serve(server={"tls": {"certificate": str(file), "key": str(file)}}, wait=False).launch()
    assert server.process is not None
    code = wait_for(server.process.poll, about="the server to give up")
    assert code == 1
    assert "server.tls" in server.log.read_text()
    assert "Traceback" not in server.log.read_text()
