"""Placement policies that choose which tenants' containers run together on a unit.

They follow a *mapping* (``hrm.policies.mapping``): how many units are to run which combination of
tenants. A container goes where its tenant is still missing from a combination; else to an empty
unit, to begin one; else where it is expected to slow down and be slowed down least. What any unit
could start is started: no core idles for want of an ideal neighbour.

``unit_mixes`` keeps who runs where, ``slowdowns`` what tenants do to each other, ``target`` the
mapping and which unit is to become what, and ``placement`` chooses.

Source: Hwang, Kim, Choi, "Achieving Fairness-Aware Two-Level Scheduling for Heterogeneous
Distributed Systems", IEEE Trans. Services Computing, 2018, section 4.2. That a running cluster only
approaches a mapping, without moving what runs, is HRM's choice.
"""

from __future__ import annotations

from hrm.policies.corunning.placement import PlaceInTurn, PlaceMostAffectedFirst, PlaceTenantsApart

__all__ = ["PlaceInTurn", "PlaceMostAffectedFirst", "PlaceTenantsApart"]
