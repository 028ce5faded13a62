"""Attacks on real daemons, each bounded in time and size, each with a limit of its effects.

``cluster`` starts and ends the daemons, ``attack`` watches one of them while it is attacked and
reports whether it was harmed, ``neighbour`` is another caller whose waiting times are measured
meanwhile, and ``messages`` makes well-typed and raw messages for every RPC of the contract.

``make test-hostile`` runs all of it and writes the table in docs/security.md; what is not marked
``hostile`` is quick and part of ``make test``.
"""
