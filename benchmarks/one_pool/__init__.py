"""Spark and pipelines on one pool, against the same nodes with half of them for either.

``plan`` says what is offered, ``tasks`` submits pipeline tasks, ``arms`` runs an arm, ``chaos``
kills daemons midway, ``measures`` has the figures, and ``report`` writes all down. Run by
``python -m benchmarks.one_pool``.
"""
