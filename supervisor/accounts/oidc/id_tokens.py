"""ID tokens of an OpenID provider: the choice of the key, the signature and the claims. Needs the extra `crypto`."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import jwt

from models.errors import Denied

ALGORITHMS = ("RS256", "ES256", "PS256")
LEEWAY_SECONDS = 60
MAX_CHARACTERS = 64 * 1024
"""Of a token, which is read on the event loop."""
MAX_KEYS = 100
_KEY_TYPES = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC"}
_MIN_RSA_BYTES = 256
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]

Jwk = Mapping[str, Any]
FindKey = Callable[[str | None, str], Awaitable[Jwk | None]]
"""Returns the key with an id (None: the only one) that fits an algorithm."""


async def verified_claims(token: str, find_key: FindKey, issuer: str, client_id: str, nonce: str) -> dict[str, Any]:
    """Returns the claims of an ID token. Raises `Denied` with what is wrong, and the errors of `find_key`."""
    if len(token) > MAX_CHARACTERS:
        raise Denied(f"the ID token has more than {MAX_CHARACTERS} characters")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise Denied("the ID token cannot be read") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS or "crit" in header:
        raise Denied(f"the ID token is not signed with {', '.join(ALGORITHMS)}")
    key = await find_key(key_id if isinstance(key_id, str) else None, algorithm)
    if key is None:
        raise Denied("the ID token is signed with a key that the provider does not publish")
    try:
        claims = jwt.decode(
            token,
            jwt.PyJWK.from_dict(dict(key), algorithm).key,
            algorithms=[algorithm],
            audience=client_id,
            issuer=issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": _REQUIRED},
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
        raise Denied(f"the ID token is not valid: {error}") from None
    _check_claims(claims, client_id, nonce)
    return claims


def _check_claims(claims: Mapping[str, Any], client_id: str, nonce: str) -> None:
    audience, party = claims["aud"], claims.get("azp")
    if party not in (None, client_id) or (isinstance(audience, list) and len(audience) > 1 and party is None):
        raise Denied("the ID token is for another client (azp)")
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "replace"), nonce.encode()):
        raise Denied("the ID token belongs to another login (nonce)")


def fitting_key(keys: Sequence[Jwk], key_id: str | None, algorithm: str) -> Jwk | None:
    """Returns the key with this id, or the only one where the token names none, if it fits the algorithm."""
    fitting = [key for key in keys if _fits(key, algorithm) and key_id in (None, key.get("kid"))]
    return fitting[0] if fitting and (key_id is not None or len(fitting) == 1) else None


def _fits(key: Jwk, algorithm: str) -> bool:
    is_for_signatures = key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
    if not is_for_signatures or key.get("kty") != _KEY_TYPES[algorithm]:
        return False
    return key.get("crv") == "P-256" if algorithm == "ES256" else _size(key.get("n")) >= _MIN_RSA_BYTES


def _size(number: object) -> int:
    """The bytes of a number of a key."""
    try:
        return len(base64.urlsafe_b64decode(f"{number}==").lstrip(b"\0"))
    except ValueError:
        return 0
