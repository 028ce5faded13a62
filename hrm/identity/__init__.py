"""Who calls: identities, their tokens and roles, and what each role may do.

Every call carries a credential. ``registry`` resolves it to an identity (``roles``); ``access`` is
the table of what each role may call; ``hrm.rpc_server`` holds every call against it, and gives the
methods the identity (``caller``), which check whether it owns what it names.
"""
