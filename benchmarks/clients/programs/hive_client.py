"""A client of the Thrift server, by PyHive: ``hive_client.py HOST PORT``."""

from __future__ import annotations

import json
import sys

from pyhive import hive

_QUERIES = (
    "SELECT sum(id) FROM range(0, 1000, 1, 4)",
    "SELECT id % 3 AS r, count(*) FROM range(0, 1000, 1, 4) GROUP BY r ORDER BY r",
    "SELECT word, length(word) FROM words ORDER BY word",
)


def main(host: str, port: int) -> None:
    """A table that is made, read and dropped, and what queries give."""
    connection = hive.connect(host=host, port=port, username="tester")
    cursor = connection.cursor()
    cursor.execute("DROP TABLE IF EXISTS words")
    cursor.execute("CREATE TABLE words (word string) USING parquet")
    cursor.execute("INSERT INTO words VALUES ('spark'), ('hrm'), ('client')")
    answer = []
    for query in _QUERIES:
        cursor.execute(query)
        answer.append([list(row) for row in cursor.fetchall()])
    cursor.execute("DROP TABLE words")
    connection.close()
    print(json.dumps({"rows": answer}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
