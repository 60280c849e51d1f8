"""ID tokens, documents and responses that no provider should send, and providers that do not answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import changed_constants
import jwt
import pytest
from conftest import Serve, Server, wait_for, workers_of
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from http_checks import running_server
from identity_providers import (
    CALLBACK,
    CLIENT_ID,
    SECRET,
    Browser,
    Double,
    Request,
    double_provider,
    query_of,
    real_provider,
    settings,
)
from users import create_session

RSA = rsa.generate_private_key(65537, 2048)
WEAK_RSA = rsa.generate_private_key(65537, 1024)  # noqa: S505 (it is to be refused)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
EC384 = ec.generate_private_key(ec.SECP384R1())


def jwk(key: Any, kid: str, **facts: str) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig", **facts}


KEYS = [
    jwk(RSA, "rsa"),
    jwk(WEAK_RSA, "weak"),
    jwk(RSA, "encryption", use="enc"),
    jwk(RSA, "ps-only", alg="PS256"),
    jwk(EC, "ec"),
    jwk(EC384, "ec384"),
]


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with double_provider() as double:
        double.set(Double.KEYS, {"keys": KEYS})
        yield double


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, double: Double) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("tokens"), **settings(double.issuer)) as server:
        yield server


def claims_of(double: Double, nonce: str) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": double.issuer, "aud": CLIENT_ID, "sub": "s-1", "iat": now, "exp": now + 300, "nonce": nonce,
        "preferred_username": "ann",
    }  # fmt: skip


def log_in(
    server: Server, double: Double, sign: Callable[[dict[str, Any]], str], query: str = ""
) -> tuple[int, str, Browser]:
    """Logs in with an ID token made of good claims; returns the status and text of the response."""
    browser = Browser(server)
    sent = query_of(browser.begin())
    double.set(Double.TOKEN, {"id_token": sign(claims_of(double, sent["nonce"])), "access_token": "a"})
    answer = browser.request(f"{CALLBACK}?code=c&state={sent['state']}{query}")
    return answer.status, answer.text, browser


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **changes: Any) -> Any:
    headers = {} if kid is None else {"kid": kid}

    def sign(claims: dict[str, Any]) -> str:
        changed = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode(changed, key, algorithm, headers)

    return sign


def test_the_double_publishes_what_the_real_provider_does(double: Double) -> None:
    with real_provider() as provider:
        published = provider.discovery()
    assert {name for name in double.document if name not in published} == set()
    assert {"RS256", "PS256", "ES256"} <= set(published["id_token_signing_alg_values_supported"])
    assert published["authorization_response_iss_parameter_supported"] is True


@pytest.mark.parametrize(
    "sign",
    [
        signed(),
        signed(algorithm="PS256"),
        signed(algorithm="PS256", kid="ps-only"),
        signed(EC, "ES256", "ec"),
        signed(EC, "ES256", None),
        signed(kid=None),
        signed(aud=[CLIENT_ID]),
        signed(aud=[CLIENT_ID, "other"], azp=CLIENT_ID),
        lambda claims: signed(iat=int(time.time()) + 30)(claims),
    ],
)
def test_a_good_token_is_accepted(server: Server, double: Double, sign: Any) -> None:
    status, text, browser = log_in(server, double, sign)
    assert status == 303, text
    assert browser.me() == ("ann", "USER")


PAST, FUTURE = int(time.time()) - 3600, int(time.time()) + 36_000
BAD_TOKENS = [
    ("nonce", signed(nonce="x"), "belongs to another login"),
    ("nonce is no text", signed(nonce="\ud800"), "belongs to another login"),
    ("no nonce", signed(nonce=None), "belongs to another login"),
    ("audience", signed(aud="other"), "Audience"),
    ("no audience", signed(aud=None), "aud"),
    ("several audiences", signed(aud=[CLIENT_ID, "other"]), "azp"),
    ("azp", signed(azp="other"), "azp"),
    ("issuer", signed(iss="https://evil.example"), "issuer"),
    ("no issuer", signed(iss=None), "iss"),
    ("expired", signed(exp=PAST), "expired"),
    ("never expires", signed(exp=float("inf")), "is not valid"),
    ("no end", signed(exp=None), "exp"),
    ("from the future", signed(iat=FUTURE), "not yet valid"),
    ("not yet", signed(nbf=FUTURE), "not yet valid"),
    ("no subject", signed(sub=None), "sub"),
    ("subject is a number", signed(sub=7), "ubject"),
    ("subject is no text", signed(sub="\ud800"), "no usable subject"),
    ("name is no text", signed(sub="s-9", preferred_username="\ud800"), "preferred_username is not usable"),
    ("name has a NUL", signed(sub="s-9", preferred_username="a\0b"), "preferred_username is not usable"),
    ("long", signed(x="x" * 50_000), "has more than 65536 characters"),
    ("long subject", signed(sub="x" * 256), "subject"),
    ("HS256", signed(SECRET.ljust(32, "x"), "HS256"), "is not signed with RS256, ES256, PS256"),
    ("none", signed(None, "none"), "is not signed with RS256, ES256, PS256"),
    ("RS384", signed(algorithm="RS384"), "is not signed with RS256, ES256, PS256"),
    ("ES384", signed(EC384, "ES384", "ec384"), "is not signed with RS256, ES256, PS256"),
    ("another key", signed(OTHER_RSA), "Signature verification failed"),
    ("unknown key", signed(OTHER_RSA, kid="unknown"), "does not publish"),
    ("key of another algorithm", signed(EC, "ES256", "rsa"), "does not publish"),
    ("key for another algorithm", signed(kid="ps-only"), "does not publish"),
    ("key for encryption", signed(kid="encryption"), "does not publish"),
    ("weak key", signed(WEAK_RSA, kid="weak"), "does not publish"),
    ("no key id among several", signed(algorithm="PS256", kid=None), "does not publish"),
    ("no token", lambda _: "x", "cannot be read"),
    ("changed claims", lambda claims: _changed(signed()(claims)), "Signature verification failed"),
]


def _changed(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{signed(sub='s-2')({}).split('.')[1]}.{signature}"


@pytest.mark.parametrize(("sign", "reason"), [case[1:] for case in BAD_TOKENS], ids=[case[0] for case in BAD_TOKENS])
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_bad_token_is_refused_with_the_reason(server: Server, double: Double, sign: Any, reason: str) -> None:
    status, text, browser = log_in(server, double, sign)
    assert status == 403, text
    assert reason in text
    assert browser.me() == 401


def test_unknown_keys_make_the_keys_be_fetched_once(serve: Serve) -> None:
    with double_provider() as double:
        double.set(Double.KEYS, {"keys": KEYS})
        server = serve(**settings(double.issuer))
        for _ in range(3):
            assert log_in(server, double, signed(OTHER_RSA, kid="unknown"))[0] == 403
        assert double.requests.count(Double.KEYS) == 2, "the first time, and once for the unknown id"
        assert double.requests.count(Double.DISCOVERY) == 1
        assert log_in(server, double, signed())[0] == 303


@pytest.mark.parametrize(("query", "status"), [("&iss=https://evil.example", 403), ("&iss=", 403), ("", 303)])
def test_the_issuer_of_the_response_is_checked(server: Server, double: Double, query: str, status: int) -> None:
    assert log_in(server, double, signed(), query)[0] == status


def test_the_issuer_of_the_response_is_required_where_the_provider_promises_it(serve: Serve) -> None:
    with double_provider() as double:
        double.set(Double.KEYS, {"keys": KEYS})
        promise = {"authorization_response_iss_parameter_supported": True}
        double.set(Double.DISCOVERY, {**double.document, **promise})
        server = serve(**settings(double.issuer))
        status, text, _ = log_in(server, double, signed())
        assert status == 403
        assert "another identity provider (iss)" in text
        assert log_in(server, double, signed(), f"&iss={double.issuer}")[0] == 303


def test_large_documents_are_parsed_in_a_worker_process(serve: Serve) -> None:
    with double_provider() as double:
        double.set(Double.DISCOVERY, {**double.document, "x": [[]] * 20_000})
        double.set(Double.KEYS, {"keys": KEYS})
        server = serve(**settings(double.issuer))
        assert workers_of(server) == []
        browser = Browser(server)
        browser.begin()
        assert len(workers_of(server)) == 1
        assert log_in(server, double, signed())[0] == 303


def test_claims_of_somebody_else_are_refused(server: Server, double: Double) -> None:
    assert log_in(server, double, signed())[0] == 303
    double.set(Double.USER_INFO, {"sub": "s-2", "preferred_username": "admin"})
    status, text, _ = log_in(server, double, signed(preferred_username=None))
    assert status == 403
    assert "somebody else (userinfo)" in text
    double.set(Double.USER_INFO, {"sub": "s-1", "preferred_username": "other"})
    status, text, browser = log_in(server, double, signed(preferred_username=None))
    assert status == 303, text
    assert browser.me() == ("ann", "USER"), "the subject has an account already"


# Providers that fail


def raw(body: bytes, status: int = 200, **headers: str) -> Callable[[Request], None]:
    return lambda request: request.answer(status, body, **headers)


RESPONSES = [
    ("500", raw(b"oops", 500), 502, "answered 500"),
    ("302", raw(b"", 302, Location="/jwks"), 502, "answered 302"),
    ("401", raw(b'{"error":"invalid_client"}', 401), 403, "refused the login (401, invalid_client)"),
    ("400", raw(b'{"error":"<script>"}', 400), 403, "refused the login (400, unknown error)"),
    ("no JSON", raw(b"<html>"), 502, "something else than a JSON object"),
    ("deep JSON", raw(b"[" * 100_000), 502, "something else than a JSON object"),
    ("a list", raw(b"[]"), 502, "something else than a JSON object"),
    ("no ID token", raw(b"{}"), 502, "without an ID token"),
    ("a number", raw(b'{"id_token":7}'), 502, "without an ID token"),
    ("huge", raw(b" " * 300_000), 502, "larger than"),
    ("hang up", lambda request: None, 502, "cannot be reached"),
]


@pytest.mark.parametrize(
    ("respond", "status", "reason"), [case[1:] for case in RESPONSES], ids=[case[0] for case in RESPONSES]
)
def test_a_bad_response_to_the_code_is_reported(
    server: Server, double: Double, respond: Callable[[Request], None], status: int, reason: str
) -> None:
    browser = Browser(server)
    sent = query_of(browser.begin())
    double.responses[Double.TOKEN] = respond
    answer = browser.request(f"{CALLBACK}?code=c&state={sent['state']}")
    assert answer.status == status, answer.text
    assert reason in answer.text
    assert browser.me() == 401


def without(double: Double, name: str) -> bytes:
    return json.dumps({key: value for key, value in double.document.items() if key != name}).encode()


DOCUMENTS: list[tuple[str, Callable[[Double], Callable[[Request], None]], str]] = [
    ("500", lambda _: raw(b"", 500), "answered 500"),
    ("no JSON", lambda _: raw(b"x"), "something else than a JSON object"),
    ("huge", lambda _: raw(b" " * 300_000), "larger than"),
    (
        "another issuer",
        lambda double: raw(json.dumps({**double.document, "issuer": "https://evil"}).encode()),
        "issuer",
    ),
    ("no endpoint", lambda double: raw(without(double, "token_endpoint")), "publishes no token_endpoint"),
    (
        "a file",
        lambda double: raw(json.dumps({**double.document, "authorization_endpoint": "file:///etc"}).encode()),
        "neither http nor https",
    ),
]


@pytest.mark.parametrize(("respond", "reason"), [case[1:] for case in DOCUMENTS], ids=[case[0] for case in DOCUMENTS])
def test_bad_metadata_is_reported(
    serve: Serve, respond: Callable[[Double], Callable[[Request], None]], reason: str
) -> None:
    with double_provider() as double:
        double.responses[Double.DISCOVERY] = respond(double)
        seconds = {"supervisor__accounts__oidc__provider__FAILURE_SECONDS": 600}
        server = serve(**settings(double.issuer), command=changed_constants.server_command(**seconds))
        for _ in range(2):
            answer = Browser(server).request("/login/oidc")
            assert answer.status == 502, answer.text
            assert reason in answer.text
        assert double.requests.count(Double.DISCOVERY) == 1, "a failure is not repeated at once"
        session = create_session(server.data, "local")
        assert server.ask("GET", "/api/v1/me", headers={"Cookie": f"{server.cookie}={session}"}).status == 200


@pytest.mark.parametrize("place", [Double.DISCOVERY, Double.TOKEN, Double.KEYS])
def test_a_provider_that_does_not_answer_delays_nothing_else(serve: Serve, place: str) -> None:
    with double_provider() as double:
        double.set(Double.KEYS, {"keys": KEYS})
        server, path = serve(**settings(double.issuer, {"timeout": "5s"})), "/login/oidc"
        browser = Browser(server)
        if place != Double.DISCOVERY:
            sent = query_of(browser.begin())
            double.set(Double.TOKEN, {"id_token": signed()(claims_of(double, sent["nonce"]))})
            path = f"{CALLBACK}?code=c&state={sent['state']}"
        double.responses[place] = double.hang
        with ThreadPoolExecutor(1) as threads:
            hanging = threads.submit(browser.request, path)
            wait_for(lambda: place in double.requests)
            assert server.get("/healthz").status == 200
            assert not hanging.done()
            assert hanging.result().status == 504
        assert browser.me() == 401
        if place != Double.DISCOVERY:
            wait_for(lambda: "a login by the identity provider failed" in server.log.read_text())


def test_endpoints_at_forbidden_addresses_are_not_contacted(serve: Serve) -> None:
    with double_provider() as double, double_provider() as victim:
        victim.set(Double.TOKEN, {})
        double.set(Double.DISCOVERY, {**double.document, "token_endpoint": f"{victim.issuer}{Double.TOKEN}"})
        server = serve(**settings(double.issuer))
        browser = Browser(server)
        sent = query_of(browser.begin())
        answer = browser.request(f"{CALLBACK}?code=c&state={sent['state']}")
        assert answer.status == 502
        assert "its address is loopback" in answer.text
        assert victim.requests == []
