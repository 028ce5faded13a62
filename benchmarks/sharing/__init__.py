"""Batch and streams on one shared pool against the same machines split in two fixed parts.

``plan`` says what is offered, ``arms`` runs it, ``measures`` turns Spark's own event logs into
figures, ``feedback`` measures how long a node's capacity stays free between two containers, and
``report`` writes all down. Run by ``python -m benchmarks.sharing``.
"""
