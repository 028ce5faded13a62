"""Three trainings on one cluster, of which two converge long before the third.

Static thirds, Spark's dynamic allocation, and HRM's elasticity give the same models; what differs
is when. See ``benchmarks.elastic.__main__``.
"""
