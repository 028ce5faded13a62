"""The node's side of HRM: what starts, isolates, watches and ends containers.

Read in this order: ``daemon`` (the interpreter around ``hrm.core.node.core``), ``containers`` (its
hands), ``shim`` (the parent of every container's process), ``isolation`` (limits), ``tracker``
(usage), ``logs`` (what containers wrote).
"""
