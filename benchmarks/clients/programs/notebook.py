"""A notebook with a session in it, executed by Jupyter's own kernel: ``notebook.py``."""

from __future__ import annotations

import json

import nbformat
from nbclient import NotebookClient

_CELLS = (
    "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()",
    "frame = spark.range(0, 1000, 1, 4)\nframe.selectExpr('sum(id)').first()[0]",
    "frame.groupBy((frame.id % 3).alias('r')).count().sort('r').show()",
    "spark.sparkContext.parallelize(range(8), 4).map(lambda x: x * x).collect()",
    "spark.stop()",
)


def main() -> None:
    """Execute the cells; the answer is what a reader would see below them."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(x) for x in _CELLS])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.outputs
        if output.get("name") != "stderr"
    ]
    print(json.dumps({"outputs": shown}))


if __name__ == "__main__":
    main()
