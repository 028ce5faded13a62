"""``hrm autoscale``: asks for nodes, and gives them back, by what waits and what is forecast.

A process of its own, with an operator's token: the master does not know of it, nothing that it does
can delay the master, and it may end and start again at any time. ``hrm.core.pool`` decides, without
IO; ``hook`` runs the command, or makes the call, that adds and removes machines; ``feed`` reads
from the master; ``daemon`` joins them.
"""
