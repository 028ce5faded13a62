"""The fault simulator: the production cores in virtual time, on machines that fail by plan.

One run is one seed. The seed draws a *plan* (``plan``, ``drawing``): how many nodes, schedulers and
applications, how the clocks differ, which faults happen and how often, and which traits the cluster
has. Then the real ``MasterCore``, ``NodeCore``, ``AppMasterCore`` and ``Replica`` live in it::

    driver, AppMaster (driver)  --\\                      /--  agent, processes (machine)
                                    network -- master
    remote scheduler (outside)  --/  (network)  (master)  \\--  agent, processes (machine)

``world`` joins the parts and lets faults happen, ``checks`` looks at everything after every event
(with ``grants``, ``evictions``, ``answers``, ``copies`` and ``views``), ``run`` judges a whole run,
``shrink`` makes a failing plan small. Only the interpreters are written anew, for virtual time:
``master`` for the master's daemon, ``machine`` for the agent, ``driver`` for the AppMaster's
process, ``outside`` for a scheduler's.

Nothing here reads a clock or draws from anything but ``random.Random`` with names made of the seed,
so one seed gives one history on every machine.
"""
