package org.apache.spark.scheduler.cluster.hrm

import java.util.{LinkedHashMap => JMap}

import org.apache.spark.{SparkConf, SparkException}

/**
 * How many executors may fail. Where HRM's settings are not set, those hold by which YARN and Kubernetes
 * say the same; Spark finds the older names of YARN under them.
 */
private[hrm] object FailureLimits {
  private val Max = "spark.hrm.executor.maxFailures"
  private val SparkMax = "spark.executor.maxNumFailures"
  private val Validity = "spark.hrm.executor.failures.validityInterval"
  private val SparkValidity = "spark.executor.failuresValidityInterval"

  /** Into the introduction of an AppMaster, with the name that its message gives to the user. */
  def describe(conf: SparkConf, hello: JMap[String, Any]): Unit = {
    val own = conf.contains(Max) || !conf.contains(SparkMax)
    hello.put("max_failures_setting", if (own) Max else SparkMax)
    hello.put("max_failures",
      if (own) notNegative(Max, conf.getInt("spark.hrm.executor.maxFailures", 0))
      // 0 is no default there: the first failure ends the application.
      else math.max(1, notNegative(SparkMax, conf.getInt(SparkMax, 1))))
    hello.put("failures_validity_ms",
      if (conf.contains(Validity) || !conf.contains(SparkValidity)) {
        conf.getTimeAsMs("spark.hrm.executor.failures.validityInterval", "1h")
      } else conf.getTimeAsMs(SparkValidity))
  }

  private def notNegative(name: String, many: Int): Int = {
    if (many < 0) throw new SparkException(s"HRM: $name is $many; give the executors that may fail, 0 or more")
    many
  }
}
