"""Attacks on real daemons, each bounded in time and size, each with what it may cost at most.

``cluster`` starts and ends the daemons, ``attack`` watches one of them while it is attacked and
says whether it was hurt, ``neighbour`` is another caller whose waiting times are measured
meanwhile, and ``messages`` makes well-typed and raw messages for every RPC that the contract has.

``make test-hostile`` runs all of it and writes the table in docs/security.md; what is not marked
``hostile`` is quick and part of ``make test``.
"""
