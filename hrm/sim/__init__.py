"""The fault simulator: the production cores in virtual time, on machines that fail by plan.

One run is one seed. The seed draws a *plan* (``plan``): how many nodes, schedulers and
applications, how the clocks differ, which faults happen and how often. Then the real
``MasterCore``, ``NodeCore`` and ``AppMasterCore`` live in that world::

    driver, AppMaster (driver)  --\\                      /--  agent, processes (machine)
                                    network -- master
    driver, AppMaster (driver)  --/  (network)  (master)  \\--  agent, processes (machine)

``world`` joins the parts and lets faults happen, ``checks`` looks at everything after every event,
``run`` judges a whole run, ``shrink`` makes a failing plan small. Only the interpreters are written
anew, for virtual time: ``master`` for the master's daemon, ``machine`` for the agent, ``driver``
for the AppMaster's process.

Nothing here reads a clock or draws from anything but ``random.Random`` with names made of the seed,
so one seed gives one history on every machine.
"""
