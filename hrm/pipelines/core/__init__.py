"""Pipeline tasks: two stages of scheduling, over the cluster and on the node.

A *task* is one input of a pipeline, a small DAG of *subtasks*, each with a CPU version, a GPU
version or both. Stage 1, in the master, chooses the node that runs the whole task
(``ClusterPolicy``); stage 2, on that node, gives each ready subtask a core or adds it to those on
a GPU (``NodePolicy``). All policies use the same estimates and the same rules of feasibility.

Source: LDWP + IAWP, sections 3 and 4 ("Learning-Driven Interference-Aware Workload Parallelization
for Streaming Applications in Heterogeneous Cluster", IEEE TPDS 2020).
"""
