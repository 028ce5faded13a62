"""Why a request for a container is refused at once: of all that a request can lack, the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hrm.core.master import driver_places, gangs, queue_bounds
from hrm.core.master.admission import gpu_refusal, malformed, refusal, resolve
from hrm.core.master.entities import Application
from hrm.core.master.state import MasterState
from hrm.core.vocabulary.advice import advice_for
from hrm.core.vocabulary.model import ContainerRequest, Resources, is_driver

__all__ = ["RequestChecks"]


class RequestChecks:
    """Why requests of one application are refused; most requests are like the one before."""

    def __init__(
        self, master_state: MasterState, app: Application, requests: Sequence[ContainerRequest],
        now: float,
    ) -> None:  # fmt: skip
        self.master_state = master_state
        self.app = app
        self._now = now
        self._requests = requests
        self._driver = is_driver(app.application_id)
        self._advice = advice_for(app.application_id)
        self._latest: ContainerRequest | None = None
        self._resources = Resources(0, 0)
        self._why = ""

    def of(self, request: ContainerRequest) -> tuple[ContainerRequest, str]:
        """The request, a whole GPU resolved to a quantity, and why it is refused; empty if it is
        not.

        Raises nothing: a refusal is a notice to the application.
        """
        limit = self.master_state.bounds.containers_limit
        if len(self.app.containers) >= limit:
            return request, (
                f"the application has {limit} containers already (containers_limit); raise it in "
                f"hrm.toml [master]"
            )
        if not self._is_like_the_latest(request):
            self._latest = request
            self._why = malformed(request)
            if not self._why:
                requires = self.app.requires
                resolved = resolve(self.master_state, request, requires)
                self._resources = resolved.resources
                self._why = (
                    gpu_refusal(self.master_state, resolved, requires, self._advice)
                    or refusal(
                        self.master_state,
                        resolved.resources,
                        advice=self._advice,
                        requires=requires,
                    )
                    or gangs.refusal(
                        self.master_state, self.app, resolved.resources, self._requests
                    )
                    or queue_bounds.refusal(
                        self.master_state, self.app, resolved.resources, self._now, self._requests
                    )
                    or self._of_driver(resolved.resources)
                )
        if not self._why and request.resources is not self._resources and request.gpus:
            request = replace(request, resources=self._resources)
        return request, self._why

    def _of_driver(self, resources: Resources) -> str:
        if not self._driver:
            return ""
        return driver_places.refusal(self.master_state, self.app, resources)

    def _is_like_the_latest(self, request: ContainerRequest) -> bool:
        latest = self._latest
        if latest is None:
            return False
        if request.resources is not latest.resources and (
            malformed(request) or request.resources != latest.resources
        ):
            return False
        same_duration = request.expected_duration_s == latest.expected_duration_s
        return request.gpus == latest.gpus and same_duration
