"""joblib's calls, and scikit-learn's folds, as tasks of Spark: ``joblib_spark.py``."""

from __future__ import annotations

import json

from joblib import Parallel, delayed, parallel_config
from joblibspark import register_spark
from sklearn import datasets, svm
from sklearn.model_selection import cross_val_score


def square(number: int) -> int:
    """What one task computes."""
    return number * number


def main() -> None:
    """Forty calls, and five folds of a classifier."""
    register_spark()
    iris = datasets.load_iris()
    with parallel_config(backend="spark", n_jobs=2):
        squares = Parallel()(delayed(square)(x) for x in range(40))
        scores = cross_val_score(svm.SVC(kernel="linear", C=1), iris.data, iris.target, cv=5)
    print(json.dumps({"squares": squares, "scores": [float(x) for x in scores]}))


if __name__ == "__main__":
    main()
