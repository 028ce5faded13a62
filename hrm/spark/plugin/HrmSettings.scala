package org.apache.spark.scheduler.cluster.hrm

import java.util.Locale

import org.apache.spark.{SparkConf, SparkContext, SparkException}
import org.apache.spark.network.util.JavaUtils
import org.apache.spark.scheduler.cluster.SchedulerBackendUtils

/**
 * Checks of everything that a user has set, before a backend exists.
 *
 * A backend has threads from the moment that it is constructed, and Spark stops none whose constructor throws: a
 * program that tries again and again would fill with them. So what can be refused is refused here, and also where it
 * would only count later. Each refusal is one line: what it is, and what to type.
 */
private[hrm] object HrmSettings {
  private val GangMin = "spark.hrm.gang.min"
  private val StreamMin = "spark.hrm.stream.min"
  private val Localize = "spark.hrm.localize"
  private val Instances = "spark.executor.instances"

  /** AppMasters poll every 10 s: one that is healthy must not be taken for dead. */
  private val HungMinMs = 15000L

  private val MoreThanZero = Seq("spark.hrm.registration.timeout", "spark.hrm.stop.timeout",
    "spark.hrm.executor.retry.delay", "spark.hrm.executor.retry.delayMax")
  private val ZeroOrMore = Seq("spark.hrm.master.timeout", "spark.hrm.locality.wait",
    "spark.hrm.executor.lossReasonTimeout", "spark.hrm.driver.failureGrace",
    ConnectServer.Idle)
  private val Counts = Seq("spark.hrm.appmaster.maxRestarts", GangMin, StreamMin, Instances)
  private val Sizes = Seq("spark.hrm.input.size", "spark.hrm.executor.gpu.memory")
  private val Choices = Seq("named", "all", "none")

  def check(context: SparkContext): Unit = {
    val conf = context.conf
    MoreThanZero.foreach(checkTime(conf, _, 1, "a time of more than 0, such as 30s"))
    ZeroOrMore.foreach(checkTime(conf, _, 0, "a time of 0 or more, such as 30s"))
    checkTime(conf, "spark.hrm.appmaster.hungTimeout", HungMinMs, "a time of at least 15s, such as 60s")
    Counts.foreach(checkCount(conf, _))
    Sizes.foreach(checkSize(conf, _))
    conf.getOption(Localize).filterNot(Choices.contains).foreach { value =>
      val meant = Choices.find(_ == value.trim.toLowerCase(Locale.ROOT)).map(x => s"; write $x").getOrElse("")
      refuse(Localize, value, s"give one of ${Choices.mkString(", ")}$meant")
    }
    FailureLimits.describe(conf, new java.util.LinkedHashMap[String, Any]())
    QueueSettings.describe(conf, new java.util.LinkedHashMap[String, Any]())
    NodeRequirement.describe(conf)
    checkFirst(conf)
    checkOfSpark(context)
  }

  /** How many of the executors that Spark requests at first start together. */
  private def checkFirst(conf: SparkConf): Unit = {
    val initial = SchedulerBackendUtils.getInitialTargetExecutorNumber(conf)
    Seq(GangMin, StreamMin).foreach { name =>
      val many = conf.getInt(name, 0)
      if (many > initial) {
        throw new SparkException(s"HRM: $name is $many, but Spark requests $initial executors at first; raise " +
          s"$Instances (with dynamic allocation spark.dynamicAllocation.initialExecutors), or lower $name")
      }
    }
  }

  private def checkOfSpark(context: SparkContext): Unit = {
    val conf = context.conf
    ExecutorLaunch.checkAuthentication(conf)
    Kerberos.prepare(conf)
    ExecutorLaunch.checkListsOfYarn(conf)
    ExecutorLaunch.checkShuffleService(conf)
    ExecutorLaunch.prepareDecommissioning(conf)
    ExecutorLaunch.javaOptions(conf)
    ExecutorLaunch.resources(context.resourceProfileManager.defaultResourceProfile, 0, conf)
  }

  private def checkTime(conf: SparkConf, name: String, leastMs: Long, valid: String): Unit =
    checked(conf, name, valid)(JavaUtils.timeStringAsMs(_) >= leastMs)

  private def checkCount(conf: SparkConf, name: String): Unit =
    checked(conf, name, "a whole number, 0 or more")(_.toInt >= 0)

  private def checkSize(conf: SparkConf, name: String): Unit =
    checked(conf, name, "a size, such as 4g")(JavaUtils.byteStringAsBytes(_) >= 0)

  private def checked(conf: SparkConf, name: String, valid: String)(isValid: String => Boolean): Unit =
    conf.getOption(name).foreach { value =>
      val fine = try isValid(value) catch { case _: IllegalArgumentException => false }
      if (!fine) refuse(name, value, s"give $valid")
    }

  private def refuse(name: String, value: String, remedy: String): Nothing =
    throw new SparkException(s"HRM: $name is '$value'; $remedy")
}
