"""The tokens of GitHub Apps: one for each repository, in memory only. Needs the extra `crypto`."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from datetime import datetime
from typing import Any

from attrs import define, field

from models.config import secret_files
from models.config.parsers import ValidationError
from models.config.settings import ForgeApp, ForgeSettings
from models.errors import Conflict, Invalid, Upstream
from models.json_format import SMALL_BODY_BYTES, json_value
from models.outbound.formats import HttpMessage
from models.outbound.outbox import DeliveryOutcome
from models.tracker.forge_reports import forge_requests
from supervisor.http.client import GuardedClient
from supervisor.single_flight import SingleFlight
from supervisor.tracker.forge_reports.exchange import exchange

_JWT_SECONDS, _CLOCK_SKEW_SECONDS = 540, 60
"""GitHub takes a JWT that ends within 10 minutes by its own clock."""
_LEFT_SECONDS = 600.0
"""A token is renewed when it has less time than this left."""
_MAX_TOKENS = 1000

Key = tuple[str, str]
"""The name of a forge, and a repository."""


class TokenRefused(Upstream):
    """The forge gave no token. `outcome` is that of its answer."""

    def __init__(self, outcome: DeliveryOutcome) -> None:
        super().__init__(outcome.error or "the forge gave no token")
        self.outcome = outcome


@define
class _Token:
    value: str = field(repr=False)
    expires_at: float
    """Seconds since 1970."""
    uses: int = 0


class AppTokens:
    def __init__(self, client: GuardedClient, max_answer: int) -> None:
        """`max_answer` is the size of the largest answer, in bytes; one beyond 64 KiB is an error, too."""
        self._client = client
        self._max_answer = min(max_answer, SMALL_BODY_BYTES)
        self._tokens: OrderedDict[Key, _Token] = OrderedDict()
        self._flights: SingleFlight[_Token] = SingleFlight()

    async def token(self, name: str, forge: ForgeSettings, repository: str) -> str:
        """The token of the App of a forge for one repository. Raises `TokenRefused`, and `Conflict` without a key."""
        key = name, repository.lower()
        found = self._kept(key)
        if found is None:
            found = await self._flights.run(key, lambda: self._fetch(key, forge, repository))
        found.uses += 1
        return found.value

    def forget(self, value: str | None) -> bool:
        """Forgets a token that the forge refused; returns whether another may be accepted: it was used before."""
        for key, one in self._tokens.items():
            if one.value == value:
                del self._tokens[key]
                return one.uses > 1
        return False

    def _kept(self, key: Key) -> _Token | None:
        found = self._tokens.get(key)
        return found if found is not None and found.expires_at - time.time() > _LEFT_SECONDS else None

    async def _fetch(self, key: Key, forge: ForgeSettings, repository: str) -> _Token:
        found = self._kept(key)  # by the call before
        if found is not None:
            return found
        app = forge.app
        assert app is not None, "the forge has an App"
        jwt, name = await asyncio.to_thread(_jwt, app, key[0]), key[0]
        id = app.installation_id
        if id is None:
            answer = await self._answer(name, forge_requests.installation(forge, jwt, repository))
            id = answer.get("id")
            if not isinstance(id, int):
                raise TokenRefused(DeliveryOutcome(False, None, f"the answer of the forge {name} has no installation"))
        answer = await self._answer(name, forge_requests.installation_token(forge, jwt, id, repository))
        value = answer.get("token")
        try:
            made = _Token(secret_files.check_token(value if isinstance(value, str) else ""), _end_of(answer))
        except ValidationError:
            raise TokenRefused(DeliveryOutcome(False, None, f"the answer of the forge {name} has no token")) from None
        self._tokens[key] = made
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
        return made

    async def _answer(self, name: str, message: HttpMessage) -> Any:
        """The JSON object that a request is answered with. Raises `TokenRefused`."""
        outcome, body = await exchange(self._client, name, message, self._max_answer, holds_target=True)
        if not outcome.is_delivered:
            raise TokenRefused(outcome)
        try:
            answer = json_value(body)
        except Invalid:
            return {}
        return answer if isinstance(answer, dict) else {}


def _end_of(answer: Any) -> float:
    """When a token ends, in seconds since 1970; now where the forge does not say."""
    try:
        return datetime.fromisoformat(str(answer.get("expires_at"))).timestamp()
    except (ValueError, OverflowError):
        return time.time()


def _jwt(app: ForgeApp, name: str) -> str:
    """What the App identifies itself with. For a worker: it reads the key. Raises `Conflict`."""
    import jwt  # large, and of the extra `crypto`, which a server with an App has

    began = int(time.time()) - _CLOCK_SKEW_SECONDS
    claims = {"iat": began, "exp": began + _JWT_SECONDS, "iss": str(app.id)}
    try:
        key = app.private_key or secret_files.private_key_of(app.private_key_file)  # type: ignore[arg-type]
        return jwt.encode(claims, key, "RS256")
    except (ValidationError, ValueError, TypeError, jwt.PyJWTError) as error:
        raise Conflict(
            f"the private key of the App of the forge {name} cannot be used: {type(error).__name__}"
        ) from None
