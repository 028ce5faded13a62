"""What stands between a learned policy and the cluster: one guard for all of them, on every level.

A guard has two ways to decide: a learned policy, and a heuristic that always decides. A
``GuardMode`` is how much the learned one is trusted; operators raise it, one step at a time::

    off      the heuristic alone
    shadow   the heuristic acts; what the learned one would have done is recorded with it
    canary   the learned one acts for 1, 10 or 50 % of the questions, by a keyed hash of their key
    on       it acts for all but a twentieth, which stays with the heuristic for good, to compare

A ``Doubt`` sends one question to the heuristic (a *fallback*), for a ``Reason`` that is counted:
the learned one raised, doubted itself, or exceeded its budget; three such delays in a row open a
breaker for a minute. A watchdog (``hrm.policies.watchdog``) compares how long tasks took with what
the heuristic had expected, between the questions that the hash gave to each of the two, over the
same span of time: where the learned one's are worse by more than 10 % and chance, the mode falls
back to ``shadow``, and stays there over a restart. What the learned policy was given counts as its
own, also where it fell back: which questions it doubts is not drawn by a hash. A question whose
expectation is a guess has none (NaN) and counts for neither, whoever decided.

Whose the questions are matters: the hash has a secret (``draw_key``), or who names his tasks would
choose their side; the watchdog compares within users; and a user sees records of his own alone.

Nothing here knows tasks, nodes or networks, reads a clock or draws at random: questions ``V``,
decisions ``D`` and both times are the caller's (``hrm.policies.guarded``,
``hrm.pipelines.policies.cluster.guarded``, ``hrm.pipelines.policies.corun.guarded``,
``hrm.pipelines.policies.resizing.guarded``). A decision may begin one thing, known by the
question's key, or several, which the caller names one by one (``expect``).
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hrm.errors import InvalidConfig, InvalidRequest, NotFound
from hrm.policies.trust import Doubt, GuardBounds, GuardMode, Reason
from hrm.policies.watchdog import Watchdog

__all__ = [
    "Decided",
    "Doubt",
    "GuardBounds",
    "GuardMode",
    "GuardRegistry",
    "GuardStatus",
    "PolicyGuard",
    "Reason",
    "Recommendation",
    "ShadowRecord",
    "canary_place",
    "mode_of",
]

V = TypeVar("V")
D = TypeVar("D")

PARTS = 10_000


class Recommendation(NamedTuple, Generic[D]):
    """A decision, its reason as text, and the expected response (seconds, NaN: unknown)."""

    decision: D
    why: str
    expected_s: float = math.nan


class Decided(NamedTuple, Generic[D]):
    """What takes effect. ``reason``: why the learned policy, though called, did not decide;
    ``doubt``: the same as text."""

    decision: D
    why: str
    learned: bool
    reason: Reason | None
    doubt: str = ""

    @property
    def drawn(self) -> bool:
        """Whether the question was the learned policy's to decide, also where it fell back."""
        return self.learned or self.reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRecord:
    """One question that both answered, of which the heuristic's answer counted."""

    now: float
    key: str
    heuristic: str
    learned: str
    """Empty: it fell back, for ``reason``."""
    same: bool
    reason: str
    seconds: float
    user: str = ""
    """Whose question it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """What people and programs may know of a guard; times are of the caller's ``now``."""

    policy: str
    kind: str
    heuristic: str
    model: str
    schema: str
    mode: GuardMode
    asked: int
    """Questions, all of them."""
    learned: int
    """Of these decided by the learned policy."""
    shadowed: int
    proposed: int
    """Of the shadowed, those that the learned policy answered."""
    agreed: int
    """Of the proposed, those on which both decided the same."""
    fallbacks: dict[str, int]
    breaker_until: float | None
    seconds_p50: float
    seconds_p99: float
    ratio_p95: float
    """Response over the heuristic's expectation, of what was the learned policy's to decide; NaN:
    few. ``reference_p95``: of what was the heuristic's, over the same span."""
    reference_p95: float
    ratio_mean: float
    """The means of the same ratios; NaN: few."""
    reference_mean: float
    compared: int
    """Ends of which the ratio is known, of what was the learned policy's to decide."""
    reference_compared: int
    rolled_back_at: float | None
    """Of the last fall back to the shadow, until somebody sets a mode; ``rolled_back_why``: its
    reason, empty where there was none."""
    rolled_back_why: str
    last: str
    """The last fallback, as text; ``last_user``: whose question that was."""
    last_user: str
    records: tuple[ShadowRecord, ...] = ()


class _Awaited(NamedTuple):
    """``life``: number of the mode's setting under which it was decided."""

    life: int
    drawn: bool
    unit: str
    user: str
    expected_s: float


@dataclass(slots=True)
class _Counters:
    asked: int = 0
    learned: int = 0
    shadowed: int = 0
    proposed: int = 0
    agreed: int = 0
    fallbacks: dict[Reason, int] = field(default_factory=dict)


class PolicyGuard(Generic[V, D]):
    """One learned policy with its heuristic.

    Args:
        policy, kind, heuristic, model, schema: names, for people.
        learned: decides, or raises ``Doubt``; any other exception counts as a doubt, too.
        fallback: always decides, before ``learned`` is called.
        clock_s: seconds that pass while ``learned`` works. ``time.thread_time`` charges it only
            with its own work; a simulator passes a clock of its own.
        check: raises ``Doubt`` where a decision of ``learned`` that came in time must not count;
            its own time does not count.
        budget_s: of a question, where that is not the one of ``bounds``.
        missing: why ``learned`` never decides; shown until there is a fallback.
    """

    def __init__(
        self,
        *,
        policy: str,
        kind: str,
        heuristic: str,
        model: str,
        schema: str,
        learned: Callable[[V], Recommendation[D]],
        fallback: Callable[[V], Recommendation[D]],
        clock_s: Callable[[], float],
        mode: GuardMode = GuardMode.SHADOW,
        bounds: GuardBounds | None = None,
        check: Callable[[V, D], None] | None = None,
        budget_s: Callable[[V], float] | None = None,
        missing: str = "",
    ) -> None:
        self.policy = policy
        self.kind = kind
        self.heuristic = heuristic
        self.model = model
        self.schema = schema
        self.bounds = GuardBounds() if bounds is None else bounds
        self._learned = learned
        self._fallback = fallback
        self._clock_s = clock_s
        self._check = check
        self._budget_s = budget_s
        self._mode = mode
        self._counters = _Counters()
        self._strikes = 0
        self._breaker_until: float | None = None
        self._seconds: deque[float] = deque(maxlen=self.bounds.samples_max)
        self._records: deque[ShadowRecord] = deque(maxlen=self.bounds.records_max)
        self._pending: dict[str, _Awaited] = {}
        self._life = 0
        self._watchdog = Watchdog(
            factor=self.bounds.watch_factor,
            span=self.bounds.watch_span,
            every=self.bounds.watch_every,
            samples_min=self.bounds.samples_min,
            false_alarms=self.bounds.watch_false_alarms,
            ratio_max=self.bounds.failed_ratio,
        )
        self._rolled_back_at: float | None = None
        self._rolled_back_why = self._last_user = ""
        self._last = missing
        self.draw_key = b""
        """The secret of the hash that draws; without one, who chooses keys chooses sides."""
        self.user_of: Callable[[str], str] = lambda key: ""
        """The user of what a question's key names, where the caller does not say."""
        self.on_roll_back: Callable[[], None] | None = None
        """Called after a fall back to the shadow, which a restart must not undo."""

    @property
    def mode(self) -> GuardMode:
        return self._mode

    def set_mode(self, mode: GuardMode) -> None:
        """From now on. Another mode begins a clean record, for both sides."""
        self._rolled_back_at, self._rolled_back_why = None, ""
        if mode is not self._mode:
            self._begin(mode)

    def _begin(self, mode: GuardMode) -> None:
        """What was decided in another mode was drawn by other shares, and is not compared."""
        self._mode = mode
        self._life += 1
        self._watchdog.forget()

    def decide(self, key: str, view: V, now: float, *, user: str | None = None) -> Decided[D]:
        """The answer that counts for the question ``view`` of ``user`` (None: see ``user_of``),
        which is known as ``key``, as is what the answer begins."""
        decided, expected_s = self.recommendation(key, view, now, user=user)
        self.expect(key, expected_s, drawn=decided.drawn, user=user)
        return decided

    def recommendation(
        self, key: str, view: V, now: float, *, user: str | None = None
    ) -> tuple[Decided[D], float]:
        """As ``decide``, with what the heuristic expects (seconds); nothing is awaited."""
        self._counters.asked += 1
        safe = self._fallback(view)
        trusted = canary_place(key, self.draw_key) < self._share()
        if self._mode is GuardMode.OFF or not (trusted or self._mode is GuardMode.SHADOW):
            return Decided(safe.decision, safe.why, False, None), safe.expected_s
        recommendation: Recommendation[D] | None = None
        doubt: Doubt | None = None
        started_s = self._clock_s()
        try:
            recommendation = self._asked(view, now)
        except Doubt as caught:
            doubt = caught
            self._count(doubt, self.user_of(key) if user is None else user)
        if self._mode is GuardMode.SHADOW:
            whose = self.user_of(key) if user is None else user
            self._record(key, whose, now, safe, recommendation, doubt, self._clock_s() - started_s)
            return Decided(safe.decision, safe.why, False, None), safe.expected_s
        if recommendation is None:
            assert doubt is not None
            why = f"{safe.why}; {self.heuristic} decided, not {self.policy}: {doubt}"
            decided = Decided(safe.decision, why, False, doubt.reason, str(doubt))
            return decided, safe.expected_s
        self._counters.learned += 1
        return Decided(recommendation.decision, recommendation.why, True, None), safe.expected_s

    def expect(
        self,
        key: str,
        expected_s: float,
        *,
        drawn: bool,
        unit: str | None = None,
        user: str | None = None,
    ) -> None:
        """Await the end of ``key``, of which the heuristic had expected ``expected_s`` (NaN:
        unknown). It replaces what was awaited under this key.

        Args:
            drawn: see ``Decided.drawn``.
            unit: the key of the question that began it, where that is another one.
            user: whose it is; None: that of ``unit``, see ``user_of``.
        """
        self._pending.pop(key, None)
        asked = key if unit is None else unit
        whose = self.user_of(asked) if user is None else user
        self._pending[key] = _Awaited(self._life, drawn, asked, whose, expected_s)
        if len(self._pending) > self.bounds.pending_max:
            del self._pending[next(iter(self._pending))]

    def forget(self, key: str) -> None:
        """Stop awaiting ``key``: its end does not reflect on the policy, or never comes."""
        self._pending.pop(key, None)

    def ended(self, key: str, *, now: float, response_s: float, ok: bool) -> None:
        """What was decided under ``key`` has ended; unknown keys are ignored."""
        awaited = self._pending.pop(key, None)
        if awaited is None or awaited.life != self._life:
            return
        if not awaited.expected_s > 0.0 or not math.isfinite(awaited.expected_s):
            return
        ratio = response_s / awaited.expected_s if ok else self.bounds.failed_ratio
        if math.isfinite(ratio) and self._watchdog.observed(
            ratio, awaited.unit, drawn=awaited.drawn, user=awaited.user, failed=not ok
        ):
            self._roll_back(now)

    def status(self, now: float) -> GuardStatus:
        """The state of affairs; ``records`` are oldest first."""
        counters = self._counters
        p50, p99 = np.percentile(self._seconds, (50, 99)) if self._seconds else (math.nan, math.nan)
        ratio_p95, reference_p95 = self._watchdog.p95()
        ratio_mean, reference_mean = self._watchdog.means()
        is_open = self._breaker_until is not None and now < self._breaker_until
        return GuardStatus(
            policy=self.policy,
            kind=self.kind,
            heuristic=self.heuristic,
            model=self.model,
            schema=self.schema,
            mode=self._mode,
            asked=counters.asked,
            learned=counters.learned,
            shadowed=counters.shadowed,
            proposed=counters.proposed,
            agreed=counters.agreed,
            fallbacks={reason.value: count for reason, count in counters.fallbacks.items()},
            breaker_until=self._breaker_until if is_open else None,
            seconds_p50=float(p50),
            seconds_p99=float(p99),
            ratio_p95=ratio_p95,
            reference_p95=reference_p95,
            ratio_mean=ratio_mean,
            reference_mean=reference_mean,
            compared=self._watchdog.compared,
            reference_compared=self._watchdog.reference_compared,
            rolled_back_at=self._rolled_back_at,
            rolled_back_why=self._rolled_back_why,
            last=self._last,
            last_user=self._last_user,
            records=tuple(self._records),
        )

    def _share(self) -> float:
        """The mode's share, less what always stays with the heuristic."""
        return min(self._mode.share, 1.0 - self.bounds.reference_share)

    def _asked(self, view: V, now: float) -> Recommendation[D]:
        """The learned policy's answer, if it may count."""
        if self._breaker_until is not None:
            if now < self._breaker_until:
                left_s = self._breaker_until - now
                raise Doubt(Reason.BREAKER, f"it was too slow; retried in {left_s:.0f} s")
            self._breaker_until = None
        started_s = self._clock_s()
        try:
            recommendation = self._learned(view)
        except Doubt:
            raise
        except Exception as error:  # whatever a learned policy does, the cluster goes on
            raise Doubt(Reason.FAULT, f"{type(error).__name__}: {error}") from error
        finally:
            took_s = self._clock_s() - started_s
            self._seconds.append(took_s)
        budget_s = self.bounds.budget_s if self._budget_s is None else self._budget_s(view)
        if took_s <= budget_s:
            self._strikes = 0
            if self._check is not None:
                self._check(view, recommendation.decision)
            return recommendation
        self._strikes += 1
        if self._strikes >= self.bounds.strikes:
            self._strikes = 0
            self._breaker_until = now + self.bounds.breaker_s
        raise Doubt(Reason.BUDGET, f"it took {1e3 * took_s:.2f} ms of {1e3 * budget_s:g} ms")

    def _record(
        self,
        key: str,
        user: str,
        now: float,
        safe: Recommendation[D],
        recommendation: Recommendation[D] | None,
        doubt: Doubt | None,
        seconds: float,
    ) -> None:
        same = recommendation is not None and recommendation.decision == safe.decision
        self._counters.shadowed += 1
        self._counters.proposed += recommendation is not None
        self._counters.agreed += same
        self._records.append(
            ShadowRecord(
                now=now,
                key=key,
                heuristic=safe.why,
                learned="" if recommendation is None else recommendation.why,
                same=same,
                reason="" if doubt is None else str(doubt),
                seconds=seconds,
                user=user,
            )
        )

    def _count(self, doubt: Doubt, user: str = "") -> None:
        self._tally(doubt.reason)
        self._last, self._last_user = str(doubt), user

    def _tally(self, reason: Reason) -> None:
        counts = self._counters.fallbacks
        counts[reason] = counts.get(reason, 0) + 1

    def _roll_back(self, now: float) -> None:
        ratio_p95, reference_p95 = self._watchdog.p95()
        worse = self.bounds.watch_factor - 1.0
        why = Doubt(
            Reason.WATCHDOG,
            f"response over expectation is worse than {self.heuristic}'s by more than "
            f"{worse:.0%} and chance, in the mean or in the tail (p95 {ratio_p95:.2f}, its "
            f"{reference_p95:.2f}): back from {self._mode.value} to shadow",
        )
        self._tally(why.reason)
        self._begin(GuardMode.SHADOW)
        self._rolled_back_at, self._rolled_back_why = now, str(why)
        if self.on_roll_back is not None:
            self.on_roll_back()


def canary_place(key: str, draw_key: bytes = b"") -> float:
    """The position of ``key`` in 0..1: the same in every mode, and wherever ``draw_key``, of at
    most 64 bytes, is the same.

    A key below the share of one canary mode is below that of the next.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8, key=draw_key).digest()
    return int.from_bytes(digest, "big") % PARTS / PARTS


class GuardRegistry:
    """The guards of one daemon, by the name of their policy, and the modes that operators set."""

    def __init__(
        self,
        modes: dict[str, GuardMode] | None = None,
        keep: Callable[[dict[str, GuardMode]], None] | None = None,
        *,
        draw_key: bytes = b"",
    ) -> None:
        """``modes``: as set in an earlier life, by policy; ``keep`` is called with them when one
        falls back by itself: only people move a mode up, not a restart. ``draw_key``: see
        ``PolicyGuard``; without one, draws can be foretold, as tests and simulators want it."""
        self._guards: dict[str, PolicyGuard[object, object]] = {}
        self._keep = keep
        self._draw_key = draw_key
        self.user_of: Callable[[str], str] = lambda key: ""
        """The user of an application, for guards whose questions name one."""
        self.on_roll_back: Callable[[GuardStatus], None] | None = None
        """Called when a policy has fallen back by itself, after ``keep``."""
        self.modes: dict[str, GuardMode] = dict(modes or {})

    def add(self, guard: PolicyGuard[V, D]) -> None:
        """Let ``guard`` serve its policy from now on, in the mode that was set for it.

        Raises:
            InvalidConfig: a policy of another kind has its name, and modes are set by name.
        """
        other = self._guards.get(guard.policy)
        if other is not None and other.kind != guard.kind:
            raise InvalidConfig(
                f"two policies are called {guard.policy!r}, for {other.kind} and for {guard.kind}, "
                f"and hrm policy set could not keep them apart; name another one in hrm.toml"
            )
        held: PolicyGuard[object, object] = guard  # type: ignore[assignment]  # never asked to decide here
        self._guards[guard.policy] = held
        guard.draw_key = self._draw_key
        guard.user_of = lambda key: self.user_of(key)
        guard.on_roll_back = partial(self._rolled_back, guard.policy)
        if guard.policy in self.modes:
            guard.set_mode(self.modes[guard.policy])

    def _rolled_back(self, policy: str) -> None:
        self.modes[policy] = self._guards[policy].mode
        if self._keep is not None:
            self._keep(self.modes)
        if self.on_roll_back is not None:
            self.on_roll_back(self._guards[policy].status(0.0))

    def __contains__(self, policy: str) -> bool:
        return policy in self._guards

    def statuses(self, now: float) -> list[GuardStatus]:
        """Of all guards, by name."""
        return [self._guards[name].status(now) for name in sorted(self._guards)]

    def set_mode(self, policy: str, mode: GuardMode) -> None:
        """Set it for now and for later lives.

        Raises:
            NotFound: no such policy is in use.
        """
        if policy not in self._guards:
            names = ", ".join(sorted(self._guards)) or "none"
            raise NotFound(
                f"no learned policy {policy!r} is in use by this master; in use: {names}. Which "
                f"ones place pipeline tasks and containers is set in hrm.toml"
            )
        self._guards[policy].set_mode(mode)
        self.modes[policy] = mode


def mode_of(text: str) -> GuardMode:
    """The mode called ``text``.

    Raises:
        InvalidRequest: there is none.
    """
    try:
        return GuardMode(text)
    except ValueError:
        names = ", ".join(mode.value for mode in GuardMode)
        raise InvalidRequest(f"{text!r} is no mode; name one of {names}") from None
