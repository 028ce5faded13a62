"""How full the GPUs of a cluster get under each placement policy: ``python -m benchmarks.packing``.

Source of the protocol: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent", USENIX ATC 2023, section 6.
"""
