"""The live master: asyncio, gRPC and SQLite around ``hrm.core.master.core.MasterCore``."""
