"""What runs in the clients' environments: programs as a user would write them.

None names a master: ``PYSPARK_SUBMIT_ARGS`` or a connection does. Each prints its answer as the
last line, a JSON object. None has the name of a package that a client imports: Python looks into a
program's own directory first.
"""
