package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}

import scala.collection.mutable

import org.apache.spark.Success
import org.apache.spark.scheduler._

/**
 * Counts what the application does and detects streams; runs in a listener queue of its own.
 *
 * It only signals to `events` that something has changed; the reader then fetches the values.
 */
private[hrm] final class HrmListener(
    events: EventQueue,
    executorAdded: () => Unit,
    exclusionsChanged: () => Unit) extends SparkListener {
  import HrmListener._

  private val streams = new StreamDetector()

  // Guards all of the fields below. A leaf: see HrmSchedulerBackend.
  private val lock = new Object
  private val jobs = mutable.Set.empty[Int]
  private val stages = mutable.LinkedHashMap.empty[(Int, Int), Stage]
  private var completedStages = 0
  private var total, completed, failed, runMs = 0L
  private var lastJobError: Option[String] = None
  private val executorTasks = new ExecutorTasks
  private val training = mutable.Queue.empty[TrainingReports.Epoch]

  /** Why the latest job failed; None: it succeeded. */
  def lastFailure: Option[String] = lock.synchronized(lastJobError)

  /** The stages of a resource profile that have not ended. */
  def stagesOf(profileId: Int): Seq[Int] = lock.synchronized {
    stages.iterator.collect { case ((id, _), stage) if stage.profileId == profileId => id }.toList.distinct
  }

  /** The observed workload class; None: no sign of a stream so far. */
  def workload: Option[StreamDetector.Workload] = streams.workload

  override def onExecutorAdded(added: SparkListenerExecutorAdded): Unit = executorAdded()

  override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit = lock.synchronized {
    executorTasks.executorRemoved(removed.executorId)
  }

  override def onNodeExcluded(excluded: SparkListenerNodeExcluded): Unit = exclusionsChanged()

  override def onNodeUnexcluded(admitted: SparkListenerNodeUnexcluded): Unit = exclusionsChanged()

  override def onOtherEvent(event: SparkListenerEvent): Unit = say(streams.observe(event))

  override def onJobStart(job: SparkListenerJobStart): Unit = {
    say(streams.observe(job.properties))
    changed { jobs += job.jobId }
  }

  override def onJobEnd(job: SparkListenerJobEnd): Unit = changed {
    jobs -= job.jobId
    lastJobError = job.jobResult match {
      case JobFailed(exception) =>
        Some(inOneLine(String.valueOf(exception.getMessage)))
      case _ => None
    }
  }

  override def onStageSubmitted(submitted: SparkListenerStageSubmitted): Unit = changed {
    val info = submitted.stageInfo
    stages((info.stageId, info.attemptNumber())) = new Stage(info)
    total += info.numTasks
  }

  override def onStageCompleted(done: SparkListenerStageCompleted): Unit = changed {
    val info = done.stageInfo
    stages.remove((info.stageId, info.attemptNumber()))
    completedStages += 1
  }

  override def onTaskStart(task: SparkListenerTaskStart): Unit = changed {
    stages.get((task.stageId, task.stageAttemptId)).foreach(_.running += 1)
  }

  override def onTaskEnd(task: SparkListenerTaskEnd): Unit = changed {
    val stage = stages.get((task.stageId, task.stageAttemptId))
    stage.foreach(s => s.running = math.max(0, s.running - 1))
    if (task.reason == Success) {
      completed += 1
      runMs += task.taskInfo.duration
      stage.foreach { s =>
        s.completed += 1
        s.runMs += task.taskInfo.duration
        executorTasks.ended(s.key, task.taskInfo, task.taskMetrics)
      }
    } else {
      failed += 1
      stage.foreach(_.failed += 1)
    }
  }

  /** Are there times of tasks that have not been reported? */
  def hasExecutorTasks: Boolean = lock.synchronized(!executorTasks.isEmpty)

  /** Are there epochs that have not been reported? */
  def hasTraining: Boolean = lock.synchronized(training.nonEmpty)

  /** An epoch of a model that the application trains; the oldest are dropped where too many are not reported. */
  def trained(epoch: TrainingReports.Epoch): Unit = changed {
    training += epoch
    if (training.size > TrainingReports.EpochsMax) training.dequeue()
  }

  /** `ends`: it is the last report. Times of tasks and epochs are in one report each. */
  def progress(ends: Boolean): JMap[String, Any] = {
    val report = counts(ends)
    val names = new JList[String]()
    streams.names.foreach(names.add)
    report.put("streaming_queries", names)
    report
  }

  private def counts(ends: Boolean): JMap[String, Any] = lock.synchronized {
    val report = new JMap[String, Any]()
    report.put("active_jobs", jobs.size)
    report.put("active_stages", stages.size)
    report.put("completed_stages", completedStages)
    report.put("tasks_total", total)
    val running = stages.values.map(_.running).sum
    report.put("tasks_running", running)
    report.put("tasks_completed", completed)
    report.put("tasks_failed", failed)
    report.put("mean_task_s", meanS(runMs, completed))
    val active = new JList[JMap[String, Any]]()
    stages.iterator.take(StagesMax).foreach { case ((id, attempt), stage) =>
      active.add(stage.describe(id, attempt))
    }
    report.put("stages", active)
    report.put("executor_tasks", executorTasks.take(ends, running > 0))
    val epochs = new JList[JMap[String, Any]]()
    training.foreach(epoch => epochs.add(epoch.describe))
    training.clear()
    report.put("training", epochs)
    report
  }

  /** `update` must only touch the fields of this object. */
  private def changed(update: => Unit): Unit = {
    lock.synchronized(update)
    events.progressed()
  }

  private def say(change: StreamDetector.Change): Unit = {
    if (change.workload) events.workloadChanged()
    if (change.names) events.progressed()
  }
}

private[hrm] object HrmListener {
  val StagesMax = 50
  val NameMax = 200
  val ReasonMax = 500
  private val Traceback = "Traceback (most recent call last):"

  /** The first line of a failure; where it only announces Python's traceback, the exception too. */
  def inOneLine(message: String): String = {
    val lines = message.linesIterator
    val first = if (lines.hasNext) lines.next().trim else ""
    val reason =
      if (!first.endsWith(Traceback)) first
      else {
        val raised = lines.find(line => line.nonEmpty && !line.head.isWhitespace).getOrElse("")
        s"${first.stripSuffix(Traceback).trim} $raised".trim
      }
    reason.take(ReasonMax)
  }

  def meanS(totalMs: Long, count: Long): Double = if (count == 0) 0.0 else totalMs / 1000.0 / count

  final class Stage(info: StageInfo) {
    private val name = info.name.take(NameMax)
    private val tasks = info.numTasks
    val profileId: Int = info.resourceProfileId
    val key: String = ExecutorTasks.stageKey(info)
    var running, completed, failed = 0
    var runMs = 0L

    def describe(id: Int, attempt: Int): JMap[String, Any] = {
      val stage = new JMap[String, Any]()
      stage.put("stage_id", id)
      stage.put("attempt", attempt)
      stage.put("name", name)
      stage.put("tasks_total", tasks)
      stage.put("tasks_running", running)
      stage.put("tasks_completed", completed)
      stage.put("tasks_failed", failed)
      stage.put("mean_task_s", meanS(runMs, completed.toLong))
      stage
    }
  }
}
