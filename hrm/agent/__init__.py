"""The node's side of HRM: what starts, isolates, watches and ends containers.

Read in this order: ``daemon`` (the interpreter around ``hrm.core.node.core``),
``containers.containers`` (processes), ``containers.shim`` (the parent of every container's
process), ``isolation`` (limits), ``tracker`` (usage), ``containers.logs`` (what containers wrote).
"""
