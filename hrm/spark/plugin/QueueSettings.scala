package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}

import org.apache.spark.{SparkConf, SparkException}

/**
 * The queue that the application names, its tags and its priority. Where HRM's settings are not set, those of YARN hold
 * that say the same; a submission is read in the same way before there is a driver (hrm/queue_settings.py).
 */
private[hrm] object QueueSettings {
  private val TagsMax = 64
  private val TextMax = 255

  /** Into the introduction of an AppMaster. */
  def describe(conf: SparkConf, hello: JMap[String, Any]): Unit = {
    val (queueName, queue) = value(conf, "spark.hrm.queue", "spark.yarn.queue")
    if (queue.length > TextMax) {
      throw new SparkException(s"HRM: $queueName has ${queue.length} characters; at most $TextMax are allowed")
    }
    val (tagsName, listed) = value(conf, "spark.hrm.tags", "spark.yarn.tags")
    val tags = listed.split(",").map(_.trim).filter(_.nonEmpty).distinct
    if (tags.length > TagsMax || tags.exists(_.length > TextMax)) {
      throw new SparkException(s"HRM: $tagsName has ${tags.length} tags; at most $TagsMax are allowed, each of at " +
        s"most $TextMax characters")
    }
    val (priorityName, priority) = value(conf, "spark.hrm.priority", "spark.yarn.priority")
    if (!priority.matches("(-?\\d{1,9})?")) {
      throw new SparkException(s"HRM: $priorityName is '$priority'; give a whole number, such as 10")
    }
    hello.put("queue", queue)
    val list = new JList[String]()
    tags.foreach(tag => list.add(tag))
    hello.put("tags", list)
    hello.put("priority", if (priority.isEmpty) 0 else priority.toInt)
  }

  /** The setting that counts, and its value, empty where none is set. */
  private def value(conf: SparkConf, names: String*): (String, String) =
    names.map(name => (name, conf.get(name, "").trim))
      .find { case (_, value) => value.nonEmpty }.getOrElse((names.head, ""))
}
