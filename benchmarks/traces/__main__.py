"""``python -m benchmarks.traces``: ``benchmarks.traces.comparison``."""

import sys

from benchmarks.traces.comparison import main

sys.exit(main())
