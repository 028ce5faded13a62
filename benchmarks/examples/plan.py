"""How each of Spark's examples is run: arguments, input, what to wait for, or why it is skipped.

Examples that are not named here run without arguments to their end. A streaming example never ends
by itself: it gets input, and is stopped once its output shows the expected pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Plan", "discover", "plan_of"]

_SVM = "data/mllib/sample_svm_data.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one example is run.

    ``arguments`` may hold ``{port}`` (a socket that sends lines) and ``{work}`` (its directory).
    ``until``: a pattern of its standard output after which it is stopped; empty: it ends by itself.
    ``in_log``: it prints nothing of use, and Spark's own log has the pattern.
    ``feed``: a directory that gets new files while it runs. ``modules``: without these it is
    skipped. ``skip``: the reason why it is not run at all.
    """

    arguments: tuple[str, ...] = ()
    until: str = ""
    in_log: bool = False
    feed: str = ""
    modules: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    skip: str = ""


_NO_EXAMPLES_JAR = "needs the spark-examples jar, which PyPI's pyspark does not have"
_SOCKET = ("127.0.0.1", "{port}")
_PAIR = r"\('[a-z]+', [1-9]\d*\)"  # ten of them are printed, in any order
_WORD = r"\|\s*spark\s*\|"

# ALS makes a deep lineage. Java's default stack is too small for it here, on local mode as well.
_DEEP = (("spark.driver.extraJavaOptions", "-Xss4m"), ("spark.executor.extraJavaOptions", "-Xss4m"))

_PLANS: dict[str, Plan] = {
    "pi.py": Plan(arguments=("4",)),
    "sort.py": Plan(arguments=("numbers.txt",)),
    "wordcount.py": Plan(arguments=("words.txt",)),
    "kmeans.py": Plan(arguments=("data/mllib/kmeans_data.txt", "2", "0.1")),
    "als.py": Plan(arguments=("20", "40", "4", "2", "2")),
    "logistic_regression.py": Plan(arguments=("points.txt", "2")),
    "pagerank.py": Plan(arguments=("data/mllib/pagerank_data.txt", "3")),
    "transitive_closure.py": Plan(arguments=("2",)),
    "avro_inputformat.py": Plan(skip=_NO_EXAMPLES_JAR),
    "parquet_inputformat.py": Plan(skip=_NO_EXAMPLES_JAR),
    "mllib/correlations.py": Plan(arguments=(_SVM.replace("svm", "linear_regression"),)),
    "mllib/gaussian_mixture_model.py": Plan(arguments=("data/mllib/kmeans_data.txt", "2")),
    "mllib/kmeans.py": Plan(arguments=("data/mllib/kmeans_data.txt", "2")),
    "mllib/logistic_regression.py": Plan(arguments=("points-labelled.txt", "2")),
    "mllib/word2vec.py": Plan(arguments=("text8_lines",)),
    "mllib/ranking_metrics_example.py": Plan(settings=_DEEP),
    "mllib/recommendation_example.py": Plan(settings=_DEEP),
    "mllib/streaming_linear_regression_example.py": Plan(
        arguments=("{work}/training", "{work}/test"),
        feed="training",
        in_log=True,
        # A batch without data trains nothing.
        until=r"GradientDescent: .*runMiniBatchSGD finished",
    ),
    "sql/arrow.py": Plan(modules=("pandas", "pyarrow")),
    "sql/udtf.py": Plan(modules=("pandas", "pyarrow")),
    "sql/jdbc.py": Plan(skip="needs a database server that executors reach"),
    "sql/datasource.py": Plan(modules=("pyarrow",)),
    "sql/streaming/structured_kafka_wordcount.py": Plan(
        skip="needs a Kafka broker and the connector for it"
    ),
    "sql/streaming/structured_network_wordcount.py": Plan(arguments=_SOCKET, until=_WORD),
    "sql/streaming/structured_network_wordcount_windowed.py": Plan(
        arguments=(*_SOCKET, "10"), until=_WORD
    ),
    "sql/streaming/structured_network_wordcount_session_window.py": Plan(
        arguments=_SOCKET, until=r"\|\s*hello\s*\|", modules=("pandas", "pyarrow")
    ),
    "sql/streaming/structured_sessionization.py": Plan(
        arguments=_SOCKET, until=_WORD, modules=("pandas", "pyarrow")
    ),
    "sql/streaming/structured_blockchain_admission_control.py": Plan(
        until=r"Batch: 1", modules=("pyarrow",)
    ),
    "streaming/hdfs_wordcount.py": Plan(arguments=("{work}/lines",), feed="lines", until=_PAIR),
    "streaming/network_wordcount.py": Plan(arguments=_SOCKET, until=_PAIR),
    # Its words are split at blanks, those of the list are followed by tabs: none ever matches.
    "streaming/network_wordjoinsentiments.py": Plan(
        arguments=_SOCKET, until=r"Happiest topics in the last 5 seconds \(\d+ total\)"
    ),
    "streaming/recoverable_network_wordcount.py": Plan(
        arguments=(*_SOCKET, "{work}/checkpoint", "{work}/counts"), until=_PAIR
    ),
    "streaming/sql_network_wordcount.py": Plan(arguments=_SOCKET, until=_WORD),
    "streaming/stateful_network_wordcount.py": Plan(arguments=_SOCKET, until=_PAIR),
}


_ORDER = (".", "sql", "sql/streaming", "streaming", "ml", "mllib")


def discover(root: Path) -> list[str]:
    """The examples under ``root``, by relative path: the general ones first, the many of machine
    learning last."""
    found = [path.relative_to(root) for path in root.rglob("*.py") if path.name != "__init__.py"]

    def place(path: Path) -> tuple[int, str]:
        folder = str(path.parent)
        return (_ORDER.index(folder) if folder in _ORDER else len(_ORDER), str(path))

    return [str(path) for path in sorted(found, key=place)]


def plan_of(example: str) -> Plan:
    return _PLANS.get(example, Plan())
