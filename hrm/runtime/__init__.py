"""Virtual time for the production machines: the counterpart of the daemons' interpreters.

``clock`` determines what happens next, ``master`` and ``node`` run ``MasterCore`` and ``NodeCore``
and carry out their commands, ``disk`` is what outlives a master, ``direct`` connects nodes to a
master by a network without faults. The fault simulator, the replay of traces, timed experiments and
``hrm.testing`` add their own parts: networks that break, processes that die, costs.
"""
