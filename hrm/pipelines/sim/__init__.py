"""Pipelines on a simulated cluster of CPUs and GPUs: the production cores in virtual time.

::

    scenario   what arrives, on which nodes, what joins, leaves and fails
    profiles   what subtasks cost alone; interference: how much they slow each other down
    machine    cores, memory, link and GPUs that are shared
    run        the cluster's core and the nodes' cores, driven by discrete events
    learning   the same for learners, one decision a step

Truth and belief are apart: machines follow the profiles and the world of interference, policies see
estimates and telemetry. One seed is one history, to the bit.

Source: LDWP + IAWP (Zhang, Geng, Ma, 2020), sections 2, 5 and 6.
"""
