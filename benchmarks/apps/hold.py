"""An application that holds its executors, without work for them, until a file exists.

spark-submit benchmarks/apps/hold.py --until FILE
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

_POLL_S = 0.2


def main() -> None:
    """Wait, print the result line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=600.0, help="limit, seconds")
    given = parser.parse_args()
    spark = SparkSession.builder.appName("hold").getOrCreate()
    begin, never = time.monotonic(), threading.Event()
    while not given.until.exists() and time.monotonic() - begin < given.timeout:
        never.wait(_POLL_S)
    spark.stop()
    print(json.dumps({"app": "hold", "elapsed_s": time.monotonic() - begin}), flush=True)


if __name__ == "__main__":
    main()
