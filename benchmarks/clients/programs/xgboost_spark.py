"""XGBoost's estimator for Spark, with two workers: ``xgboost_spark.py``."""

from __future__ import annotations

import json

from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from xgboost.spark import SparkXGBClassifier


def main() -> None:
    """Train on rows that any run makes alike, and score them."""
    spark = SparkSession.builder.getOrCreate()
    rows = [
        (float(i % 97), float(i * 7 % 89), float(i * 13 % 31), int((i % 97 + i * 7 % 89) > 90))
        for i in range(2000)
    ]
    frame = spark.createDataFrame(rows, "a double, b double, c double, label int").repartition(2)
    vectors = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features").transform(frame)
    classifier = SparkXGBClassifier(
        features_col="features", label_col="label", num_workers=2, n_estimators=10, max_depth=4
    )
    predicted = classifier.fit(vectors).transform(vectors)
    area = BinaryClassificationEvaluator(labelCol="label").evaluate(predicted)
    right = predicted.where("prediction = label").count()
    spark.stop()
    print(json.dumps({"area": round(area, 3), "right": right}))


if __name__ == "__main__":
    main()
