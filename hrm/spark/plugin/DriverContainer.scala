package org.apache.spark.scheduler.cluster.hrm

import java.util.Locale

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.executor.ExecutorLogUrlHandler
import org.apache.spark.internal.config.UI

/**
 * What Spark's UI shows of a driver that runs in a container of a node: links to its logs, and its
 * attributes, by which spark.ui.custom.executor.log.url finds logs that were collected elsewhere.
 *
 * The node sets them in the environment, as it does for executors. A driver outside the cluster has
 * none, and its logs are wherever its user sends them.
 */
private[hrm] object DriverContainer {
  private val LogUrl = "SPARK_DRIVER_LOG_URL_"
  private val Attribute = "SPARK_DRIVER_ATTRIBUTE_"

  /** Whether this driver is one that a node runs, in cluster deploy mode: its runner sets this. */
  def isHere: Boolean = sys.env.contains("HRM_DRIVER_EXIT_FILE")

  def logUrls(conf: SparkConf, applicationId: String): Option[Map[String, String]] = {
    val urls = variables(LogUrl).map { case (name, url) => name.toLowerCase(Locale.ROOT) -> url }
    if (urls.isEmpty) None
    else {
      // Spark itself applies the user's pattern to executors alone.
      val handler = new ExecutorLogUrlHandler(conf.get(UI.CUSTOM_EXECUTOR_LOG_URL))
      Some(handler.applyPattern(urls, attributes(applicationId).getOrElse(Map.empty)))
    }
  }

  /** The node knows the submission; the application has its id from the master. */
  def attributes(applicationId: String): Option[Map[String, String]] = {
    val given = variables(Attribute)
    if (given.isEmpty) None
    else Some(given ++ Map("APP_ID" -> applicationId, "EXECUTOR_ID" -> SparkContext.DRIVER_IDENTIFIER))
  }

  private def variables(prefix: String): Map[String, String] = sys.env.collect {
    case (name, value) if name.startsWith(prefix) => name.stripPrefix(prefix) -> value
  }
}
