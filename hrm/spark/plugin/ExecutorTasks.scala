package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}
import java.util.concurrent.TimeUnit

import scala.collection.mutable
import scala.util.hashing.MurmurHash3

import org.apache.spark.executor.TaskMetrics
import org.apache.spark.scheduler.{StageInfo, TaskInfo}

/**
 * How long tasks take on each executor, for the master, which learns what its nodes are to them.
 *
 * Kept are sums by stage and executor, of tasks that have ended well since they were last reported.
 * Left out are tasks that an executor began before it had ended one: they load its classes, and
 * compile them. Bounded: the oldest sums are dropped. Not thread-safe.
 */
private[hrm] final class ExecutorTasks {
  import ExecutorTasks._

  private val sums = mutable.LinkedHashMap.empty[(String, String), Sum]
  // By executor, when it first ended a task.
  private val warmSinceMs = mutable.LinkedHashMap.empty[String, Long]
  private var reportedNs = System.nanoTime()

  def isEmpty: Boolean = sums.isEmpty

  /** A task of `stage` has ended well. */
  def ended(stage: String, task: TaskInfo, metrics: TaskMetrics): Unit = {
    val executor = task.executorId
    val warmMs = warmSinceMs.getOrElseUpdate(executor, task.finishTime)
    if (warmSinceMs.size > SumsMax) warmSinceMs -= warmSinceMs.head._1
    // What it waits for other executors is not its node's doing.
    if (task.launchTime >= warmMs && !task.speculative && metrics != null) {
      val read = metrics.shuffleReadMetrics
      val sum = sums.getOrElseUpdate((stage, executor), new Sum)
      sum.tasks += 1
      sum.runMs += math.max(1L, metrics.executorRunTime - read.fetchWaitTime)
      sum.readBytes += math.max(0L, metrics.inputMetrics.bytesRead + read.totalBytesRead)
      if (sums.size > SumsMax) sums -= sums.head._1
    }
  }

  def executorRemoved(executorId: String): Unit = warmSinceMs -= executorId

  /**
   * What is to be reported now, and is forgotten with that: the oldest sums. Nothing unless it
   * `ends`, or some time has passed; less of it while nothing runs, because what is on the nodes
   * is to be as it was while the tasks ran.
   */
  def take(ends: Boolean, running: Boolean): JList[JMap[String, Any]] = {
    val report = new JList[JMap[String, Any]]()
    val now = System.nanoTime()
    val intervalNs = if (running) IntervalNs else IdleIntervalNs
    if (sums.nonEmpty && (ends || now - reportedNs >= intervalNs)) {
      reportedNs = now
      val oldest = sums.take(ReportMax).toList
      oldest.foreach { case (key, sum) =>
        sums -= key
        report.add(sum.describe(key))
      }
    }
    report
  }
}

private[hrm] object ExecutorTasks {
  val SumsMax = 4000
  val ReportMax = 200
  val NameMax = 150
  val IntervalNs: Long = TimeUnit.SECONDS.toNanos(10)
  val IdleIntervalNs: Long = TimeUnit.SECONDS.toNanos(2)

  /**
   * What is the same for a stage whenever the application runs. Names alone are not enough: from
   * Python, all stages are called by the same line of Spark. What they compute tells them apart.
   */
  def stageKey(info: StageInfo): String = {
    val scopes = info.rddInfos.flatMap(_.scope).map(_.name).distinct.sorted
    f"${info.name.take(NameMax)}%s ${MurmurHash3.orderedHash(scopes)}%08x"
  }

  final class Sum {
    var tasks = 0
    var runMs, readBytes = 0L

    def describe(key: (String, String)): JMap[String, Any] = {
      val sum = new JMap[String, Any]()
      sum.put("stage", key._1)
      sum.put("executor_id", key._2)
      sum.put("tasks", tasks)
      sum.put("run_s", runMs / 1000.0)
      sum.put("input_bytes", readBytes)
      sum
    }
  }
}
