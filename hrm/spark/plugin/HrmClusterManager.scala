package org.apache.spark.scheduler.cluster.hrm

import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkException}
import org.apache.spark.scheduler.{ExternalClusterManager, SchedulerBackend}
import org.apache.spark.scheduler.{TaskScheduler, TaskSchedulerImpl}

/**
 * Found by Spark's ServiceLoader for masters of the form hrm://host:port.
 *
 * spark-submit admits only masters of known schemes, so spark-env.sh rewrites hrm:// to spark+hrm://
 * on the command line; a master that application code sets itself arrives here unchanged. All
 * policy is in the AppMaster, a Python process; this jar only carries messages between it and
 * Spark.
 */
class HrmClusterManager extends ExternalClusterManager {

  override def canCreate(masterURL: String): Boolean =
    HrmClusterManager.Schemes.exists(scheme => masterURL.startsWith(scheme))

  /** The first that Spark calls: what the user has set is checked before anything is made. */
  override def createTaskScheduler(sc: SparkContext, masterURL: String): TaskScheduler = {
    HrmClusterManager.address(masterURL)
    HrmSettings.check(sc)
    new HrmTaskScheduler(sc)
  }

  override def createSchedulerBackend(
      sc: SparkContext,
      masterURL: String,
      scheduler: TaskScheduler): SchedulerBackend =
    new HrmSchedulerBackend(
      scheduler.asInstanceOf[TaskSchedulerImpl], sc, HrmClusterManager.address(masterURL))

  /** The backend has an AppMaster already; Spark forgets a backend for which this fails. */
  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    try scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend) catch {
      case NonFatal(e) =>
        backend.asInstanceOf[HrmSchedulerBackend].abandon(s"the SparkContext could not be made: $e")
        throw e
    }
}

private[hrm] object HrmClusterManager {
  private val Schemes = Seq("spark+hrm://", "hrm://")
  private val Address = """(?:\[[0-9A-Fa-f:.]+\]|[^:/@\s]+):(\d{1,5})""".r

  /** host:port of a master URL. */
  def address(masterURL: String): String = {
    val scheme = Schemes.find(s => masterURL.startsWith(s)).getOrElse("")
    val address = masterURL.stripPrefix(scheme)
    address match {
      case Address(port) if port.toInt >= 1 && port.toInt <= 65535 => address
      case _ => throw new SparkException(
        s"'$masterURL' is not the address of an HRM master; write hrm://HOST:PORT, such as " +
          "hrm://127.0.0.1:7480")
    }
  }
}
