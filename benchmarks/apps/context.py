"""The smallest application: it registers, and ends.

spark-submit --deploy-mode cluster benchmarks/apps/context.py
"""

from __future__ import annotations

from pyspark.sql import SparkSession


def main() -> None:
    SparkSession.builder.appName("context").getOrCreate().stop()


if __name__ == "__main__":
    main()
