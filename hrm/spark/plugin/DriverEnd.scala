package org.apache.spark.scheduler.cluster.hrm

import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.util.ShutdownHookManager

/**
 * The end of a driver on a node whose application has failed.
 *
 * HRM then stops the SparkContext, and most programs end of that: with an exception, or with an exit status of their
 * own. A service, such as Spark's Connect or Thrift server, lives on without a context: it fails every request,
 * holds its cores, and is not restarted (--supervise), because its driver has not ended. So a driver that has not
 * ended after a grace period is ended here, with an exit status other than 0. One that has made another context
 * goes on, and so does every driver outside the cluster, such as a notebook.
 */
private[hrm] object DriverEnd {
  private val Grace = "spark.hrm.driver.failureGrace"
  private val ExitStatus = 1
  private val HooksMs = 10000L

  private val contexts = new AtomicInteger()

  def graceMs(conf: SparkConf): Long = conf.getTimeAsMs("spark.hrm.driver.failureGrace", "30s")

  /** A SparkContext is being made. */
  def contextBegins(): Unit = contexts.incrementAndGet()

  def afterFailure(why: String, graceMs: Long): Unit = if (DriverContainer.isHere) {
    inBackground("hrm-driver-end") {
      awaitCalm(graceMs)
      if (!hasContext && !ShutdownHookManager.inShutdown()) end(why, graceMs)
    }
  }

  /** A program that makes one context after the other has not come to its end. */
  private def awaitCalm(graceMs: Long): Unit = {
    var seen = contexts.get - 1
    while (seen != contexts.get) {
      seen = contexts.get
      Thread.sleep(graceMs)
    }
  }

  private def hasContext: Boolean = SparkContext.getActive.exists(context => !context.isStopped)

  private def end(why: String, graceMs: Long): Unit = {
    val graceS = TimeUnit.MILLISECONDS.toSeconds(graceMs)
    // The node takes this line for the reason of the end: hrm.agent.containers.last_words.
    System.err.println(s"HRM: the driver is ended: ${HrmListener.inOneLine(why)}; it had not ended by itself $graceS " +
      s"s after that ($Grace)")
    exit(ExitStatus)
  }

  /** Ends this JVM, whatever its shutdown hooks do. */
  def exit(status: Int): Unit = {
    inBackground("hrm-driver-halt") { // its shutdown hooks may hang
      Thread.sleep(HooksMs)
      Runtime.getRuntime.halt(status)
    }
    System.exit(status)
  }

  private def inBackground(name: String)(action: => Unit): Unit = {
    val thread = new Thread((() => action): Runnable, name)
    thread.setDaemon(true)
    thread.start()
  }
}
