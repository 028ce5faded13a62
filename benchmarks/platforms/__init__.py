"""Three tenants on two unlike platforms, on a real cluster with real applications.

``plan`` says what tenants do, ``throttle`` makes a node slow, ``cluster`` is two nodes of unlike
speed, ``arms`` runs tenants alone and together, ``report`` writes all down. Run by ``python -m
benchmarks.platforms``.
"""
