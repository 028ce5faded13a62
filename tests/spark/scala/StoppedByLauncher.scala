package org.apache.spark.scheduler.cluster.hrm

import java.io.File

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.launcher.{InProcessLauncher, SparkAppHandle}

/**
 * A program that launches an application and then stops it by its SparkAppHandle: the handle says that it was
 * killed, and so does the AppMaster, as it must reach the master.
 *
 * Argument: a directory. Exit: 0 all is well, 1 it is not, 4 not done in time.
 */
object StoppedByLauncher {
  val StartLimitS = 60L // of a spark-submit in this JVM

  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    val master = new LockStress.PlayedAppMaster(new File(arguments(0)))
    master.start()
    val launcher = new InProcessLauncher()
      .setMaster("spark+hrm://127.0.0.1:1").setAppName("launched")
      .setMainClass("org.apache.spark.scheduler.cluster.hrm.Launched").setAppResource("spark-internal")
    Seq(
      "spark.ui.enabled" -> "false", "spark.authenticate" -> "false",
      "spark.driver.host" -> "127.0.0.1", "spark.driver.bindAddress" -> "127.0.0.1",
      "spark.hrm.python" -> master.program.toString
    ).foreach { case (name, value) => launcher.setConf(name, value) }
    val handle = launcher.startApplication()
    LockStress.until("it runs", StartLimitS)(handle.getState == SparkAppHandle.State.RUNNING)
    handle.stop()
    LockStress.until("its AppMaster hears of the end")(master.heard.containsKey("finish"))
    LockStress.check(master.heard.get("finish") == "KILLED", s"heard at last: ${master.heard}")
    LockStress.until("the handle has its last state")(handle.getState.isFinal)
    LockStress.check(handle.getState == SparkAppHandle.State.KILLED, s"its state is ${handle.getState}")
    println("OK")
    Runtime.getRuntime.halt(0)
  }
}

/** The application: it waits until it is stopped. spark-submit does not take that it has no executors. */
object Launched {
  def main(arguments: Array[String]): Unit = {
    val sc = new SparkContext(new SparkConf().set("spark.executor.instances", "0"))
    LockStress.until("it is stopped", StoppedByLauncher.StartLimitS)(sc.isStopped)
  }
}
