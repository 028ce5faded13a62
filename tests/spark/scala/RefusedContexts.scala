package org.apache.spark.scheduler.cluster.hrm

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.spark.{SparkConf, SparkContext}

/**
 * A program that tries again and again with settings that are refused, and prints why: none may leave a thread.
 *
 * Arguments: a directory, and settings as NAME=VALUE. Each is tried once and its refusal printed; then the last of them
 * as often as RoundsMax says.
 */
object RefusedContexts {
  private val RoundsMax = 100
  private val ThreadsMax = 5 // of Spark's own, such as timers that end a little later

  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    val settings = arguments.toList.tail.map(_.split("=", 2)).map(x => x(0) -> x(1))
    settings.foreach { case (name, value) => println(s"$name=$value -> ${refusal(name, value)}") }
    val before = Thread.activeCount()
    val (name, value) = settings.last
    (1 to RoundsMax).foreach(_ => refusal(name, value))
    LockStress.until("the threads of refused contexts end")(Thread.activeCount() <= before + ThreadsMax)
    LockStress.check(LockStress.ours.filterNot(_.getName == "watch").isEmpty, "threads of the plugin's")
    LockStress.check(
      !Thread.getAllStackTraces.keySet.asScala.exists(_.getName.startsWith("driver-revive")), "threads of backends")
    println("OK")
    Runtime.getRuntime.halt(0)
  }

  private def refusal(name: String, value: String): String = {
    val made = Try(new SparkContext(new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("refused")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set(name, value)))
    LockStress.check(made.isFailure, s"$name=$value is taken")
    Iterator.iterate(made.failed.get)(_.getCause).takeWhile(_ != null)
      .map(x => String.valueOf(x.getMessage)).find(_.startsWith("HRM: ")).getOrElse(made.failed.get.toString)
  }
}
