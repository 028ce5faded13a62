package org.apache.spark.scheduler.cluster.hrm

import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging
import org.apache.spark.launcher.{LauncherBackend, SparkAppHandle}

/**
 * The connection to a program that started this driver with SparkLauncher and follows it through a
 * SparkAppHandle: it sees the application's id and its states, and may stop it.
 *
 * It is a convenience of that program: where it has ended, the application goes on without it. The
 * port and the secret are in the environment, which programs that a driver starts inherit, so an
 * attempt to connect may also meet a launcher that expects no other driver.
 *
 * `requestStop` is called on a thread of its own, which holds no lock. No method may be called
 * with a lock of HRM's held: each writes to a socket.
 */
private[hrm] final class LauncherLink(sparkConf: SparkConf, requestStop: () => Unit)
  extends LauncherBackend with Logging {

  @volatile private var stopping = false

  override protected def conf: SparkConf = sparkConf

  def stopRequested: Boolean = stopping

  override protected def onStopRequest(): Unit = {
    stopping = true
    requestStop()
  }

  def submitted(): Unit = attempt {
    connect()
    setState(SparkAppHandle.State.SUBMITTED)
  }

  def running(applicationId: String): Unit = attempt {
    setAppId(applicationId)
    setState(SparkAppHandle.State.RUNNING)
  }

  /** The last state; a second call changes nothing. What was stopped on request has not failed. */
  def ended(state: SparkAppHandle.State): Unit = attempt {
    try setState(if (stopRequested) SparkAppHandle.State.KILLED else state) finally close()
  }

  private def attempt(report: => Unit): Unit = try report catch {
    case NonFatal(e) => logWarning(s"the program that launched this driver cannot follow it: $e")
  }
}
