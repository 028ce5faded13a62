"""Pipelines on a simulated cluster of CPUs and GPUs: the production cores in virtual time.

::

    scenario   arrivals, nodes, and which nodes join, leave and fail
    profiles   what subtasks cost alone; interference: how much they slow each other down
    machine    cores, memory, link and shared GPUs
    run        the cluster's core and the nodes' cores, driven by discrete events
    learning   the same for learners, one decision per step

Truth and estimates are separate: machines follow the profiles and the world of interference,
policies get estimates and telemetry. A seed determines the history to the bit.

Source: LDWP + IAWP (Zhang, Geng, Ma, 2020), sections 2, 5 and 6.
"""
