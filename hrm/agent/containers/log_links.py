"""Links that open one log to a browser, which carries no token.

A link is signed: ``sig`` is the HMAC-SHA256 of the log's path, the user it is for and its time,
under a key that this agent alone has. It grants reading that log and nothing else. There are two
kinds:

* *of an application*: what Spark's own UI shows, for the application's user. Nothing renews it
  there, so it is valid while the container lives and ``log_links_keep_s`` after its end;
* *of an asker* (``hrm app logs --link``): for the user who requested it, valid for ``log_link_s``.

A link is a bearer token: no listing and no report has one, pages must not be cached (``no-store``)
or sent as a referrer (``no-referrer``), and the second kind is short-lived.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from hrm.errors import InvalidRequest

__all__ = ["LogLinks"]

ASKER_LENGTH_MAX = 128
_FIELDS = ("for", "until", "sig")


class LogLinks:
    """Signs and checks. ``key``: the node's secret; links stay valid when its agent restarts.

    ``asked_s``: how long a link of an asker is valid; ``keep_s``: one of an application after the
    container's end. ``clock``: seconds since the epoch.
    """

    def __init__(
        self, key: str, *, asked_s: float, keep_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = hmac.digest(key.encode(), b"hrm log links", "sha256")
        self._asked_s = asked_s
        self._keep_s = keep_s
        self._clock = clock

    def of_application(self, path: str, user: str) -> str:
        """The query that opens ``path``."""
        return urlencode({"for": user, "sig": self._signature(path, user, "")})

    def of_asker(self, path: str, asker: str) -> tuple[str, float]:
        """The query that opens ``path``, and until when.

        Raises:
            InvalidRequest: ``asker`` cannot name a user.
        """
        if not (0 < len(asker) <= ASKER_LENGTH_MAX and asker.isprintable()):
            raise InvalidRequest(
                f"asker: give the name of a user, 1 to {ASKER_LENGTH_MAX} printable characters"
            )
        until = int(self._clock() + self._asked_s)
        sig = self._signature(path, asker, str(until))
        return urlencode({"for": asker, "until": until, "sig": sig}), float(until)

    def refusal(
        self, path: str, query: Mapping[str, str], ended_at_s: float | None
    ) -> tuple[int, str] | None:
        """The HTTP status and the reason why ``query`` does not grant ``path``; None: it does.
        ``ended_at_s``: the container's end, None: it lives."""
        until = query.get("until", "")
        expected = self._signature(path, query.get("for", ""), until)
        given = query.get("sig", "").encode(errors="replace")
        if not hmac.compare_digest(given, expected.encode()):
            return 403, f"this address has no link that opens the log; {_how(path)}\n"
        if until:
            limit_s, what = float(until), "its time is over (log_link_s)"
        else:
            limit_s = float("inf") if ended_at_s is None else ended_at_s + self._keep_s
            what = f"the container ended more than {self._keep_s:.0f} s ago (log_links_keep_s)"
        if self._clock() > limit_s:
            return 410, f"this link has expired: {what}; {_how(path)}\n"
        return None

    @staticmethod
    def again(query: Mapping[str, str]) -> str:
        """The part of the query that opens a log, for the links on its pages."""
        return urlencode({name: query[name] for name in _FIELDS if name in query})

    def _signature(self, path: str, user: str, until: str) -> str:
        what = json.dumps([path, user, until]).encode()
        return hmac.new(self._key, what, "sha256").hexdigest()


def _how(path: str) -> str:
    """Other ways to that log. ``path``: of a page, so its parts are harmless."""
    container_id, _, stream = path.removeprefix("/containers/").partition("/")
    application_id, _, executor_id = container_id.rpartition("-x")
    return (
        f"for a link: hrm app logs {application_id or 'APPLICATION'} --executor "
        f"{executor_id or 'N'} --stream {stream} --link; for the log: the same without --link"
    )
