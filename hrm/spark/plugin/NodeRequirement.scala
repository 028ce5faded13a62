package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}

import scala.util.Properties

import org.apache.spark.{SparkConf, SparkException}

/**
 * What a node must have to get this application's executors, besides the driver's Spark: labels, and
 * the versions of Scala, Java and Python. A node that does not have all of it gets none.
 */
private[hrm] object NodeRequirement {
  private val Labels = "spark.hrm.node.label"
  private val Java = "spark.hrm.node.java"
  private val Python = "spark.hrm.node.python"
  private val Label = "[A-Za-z0-9._/-]+(=[A-Za-z0-9._/-]*)?"

  def describe(conf: SparkConf): JMap[String, Any] = {
    val node = new JMap[String, Any]()
    val labels = new JList[String]()
    conf.get(Labels, "").split(",").map(_.trim).filter(_.nonEmpty).foreach { label =>
      check(Labels, label, Label, "a name or name=value, such as zone=a, of each label")
      labels.add(label)
    }
    node.put("labels", labels)
    node.put("scala", Properties.versionNumberString.split('.').take(2).mkString("."))
    node.put("java", version(conf, Java, "\\d+", "one number, such as 17"))
    node.put("python", version(conf, Python, "\\d+\\.\\d+", "two numbers, such as 3.11"))
    node
  }

  private def version(conf: SparkConf, name: String, pattern: String, form: String): String = {
    val value = conf.get(name, "").trim
    if (value.nonEmpty) check(name, value, pattern, form)
    value
  }

  private def check(name: String, value: String, pattern: String, form: String): Unit =
    if (!value.matches(pattern)) throw new SparkException(s"HRM: $name is '$value'; it must be $form")
}
