"""The fault simulator: the production cores in virtual time, on machines that fail by plan.

One run is one seed. The seed draws a *plan* (``faults.plan``, ``faults.plan_generator``): nodes,
schedulers, applications, clocks, faults and traits. Then the real ``MasterCore``, ``NodeCore``,
``AppMasterCore`` and ``Replica`` live in it::

    driver, AppMaster (driver)  --\\                      /--  agent, processes (machine)
                                    network -- master
    remote scheduler            --/  (network)  (master)  \\--  agent, processes (machine)

``world`` joins the parts and injects faults, ``oracle.checks`` checks everything after every
event (with the rest of ``oracle``), ``run`` evaluates a whole run and makes a failing plan small.
``actors`` holds the interpreters for virtual time.

Nothing here reads a clock or draws from anything but ``random.Random`` with names made of the seed,
so one seed gives one history on every machine.
"""
