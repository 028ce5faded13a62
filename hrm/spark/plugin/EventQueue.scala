package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}
import java.util.concurrent.TimeUnit

import scala.collection.mutable

/**
 * Events of Spark for the AppMaster.
 *
 * The queue is bounded because it conflates: of targets only the newest survives; a kill is one
 * executor id, of which there are as many as executors. Orders are queued whole. Of observations,
 * the class and the progress, the queue only holds that they have changed: the reader fetches them
 * after `poll` has returned, and so gets the newest. A new AppMaster (a higher generation) gets the
 * whole state again; a poll of an older one returns nothing.
 */
private[hrm] final class EventQueue {
  import EventQueue._

  // Guards all of the fields below, except the volatile one. A leaf: see HrmSchedulerBackend.
  private val lock = new Object

  private var generation = 0
  private var ending = false
  private var targets: Option[JList[JMap[String, Any]]] = None
  private var finish: Option[Finish] = None
  private var workloadKnown = false
  // Already sent to the current AppMaster?
  private var targetsHeard, workloadHeard, finishHeard = false
  // Executors that Spark wants gone and whose end is not reported yet, and those of them not yet sent.
  private val kills = mutable.LinkedHashSet.empty[String]
  private val killsUnheard = mutable.LinkedHashSet.empty[String]
  private var progressChanged = false
  private var progressSentNs = 0L
  @volatile private var polledNs = System.nanoTime()

  /** The caller must not change `total` afterwards. */
  def setTargets(total: JList[JMap[String, Any]]): Unit = lock.synchronized {
    if (!ending) {
      targets = Some(total)
      targetsHeard = false
      lock.notifyAll()
    }
  }

  /** Executors that end from now on are not replaced, whatever is requested later. */
  def endTargets(): Unit = lock.synchronized {
    targets = Some(new JList[JMap[String, Any]]())
    targetsHeard = false
    ending = true
    lock.notifyAll()
  }

  def kill(executorIds: Seq[String]): Unit = lock.synchronized {
    kills ++= executorIds
    killsUnheard ++= executorIds
    lock.notifyAll()
  }

  def workloadChanged(): Unit = lock.synchronized {
    workloadKnown = true
    workloadHeard = false
    lock.notifyAll()
  }

  def progressed(): Unit = lock.synchronized {
    if (!progressChanged) {
      progressChanged = true
      lock.notifyAll()
    }
  }

  def setFinish(state: String, message: String): Unit = lock.synchronized {
    if (finish.isEmpty) {
      finish = Some(Finish(state, message))
      finishHeard = false
      lock.notifyAll()
    }
  }

  def ended(executorId: String): Unit = lock.synchronized {
    kills -= executorId
    killsUnheard -= executorId
  }

  /** A new AppMaster begins to poll: it gets everything that still holds. */
  def newGeneration(): Int = lock.synchronized {
    generation += 1
    targetsHeard = false
    workloadHeard = false
    finishHeard = false
    killsUnheard ++= kills
    progressChanged = true
    polledNs = System.nanoTime()
    lock.notifyAll()
    generation
  }

  /** Polling is over: a waiting call must not keep the JVM alive. */
  def close(reader: Int): Unit = lock.synchronized {
    if (reader == generation) {
      generation += 1
      lock.notifyAll()
    }
  }

  /** Seconds since the AppMaster last polled. */
  def silenceS: Long = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - polledNs)

  /** All that is new for `reader`, a generation; waits up to `timeoutMs` for something new. */
  def poll(reader: Int, timeoutMs: Long): News = lock.synchronized {
    val limitMs = math.min(timeoutMs, PollMaxMs)
    val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMs)
    polledNs = System.nanoTime()
    var news = if (reader == generation) take() else NoNews
    while (news == NoNews && reader == generation && deadlineNs > System.nanoTime()) {
      val waitNs = math.min(deadlineNs - System.nanoTime(), untilProgressNs)
      lock.wait(math.max(1L, TimeUnit.NANOSECONDS.toMillis(waitNs)))
      if (reader == generation) news = take()
    }
    polledNs = System.nanoTime()
    news
  }

  private def untilProgressNs: Long =
    if (progressChanged) progressSentNs + ProgressIntervalNs - System.nanoTime() else Long.MaxValue

  private def take(): News = {
    val ends = finish.filterNot(_ => finishHeard)
    val news = News(
      targets = targets.filterNot(_ => targetsHeard),
      kills = killsUnheard.toList,
      workload = workloadKnown && !workloadHeard,
      progress = progressChanged && (untilProgressNs <= 0 || ends.isDefined),
      finish = ends)
    targetsHeard ||= news.targets.isDefined
    killsUnheard.clear()
    workloadHeard ||= news.workload
    if (news.progress) {
      // Before the values are read, so that a later change counts as one.
      progressChanged = false
      progressSentNs = System.nanoTime()
    }
    finishHeard ||= ends.isDefined
    news
  }
}

private[hrm] object EventQueue {
  val PollMaxMs = 30000L
  val ProgressIntervalNs: Long = TimeUnit.MILLISECONDS.toNanos(500)

  final case class Finish(state: String, message: String)

  /** The result of one poll. `workload`, `progress`: there is something new to read. */
  final case class News(
      targets: Option[JList[JMap[String, Any]]],
      kills: List[String],
      workload: Boolean,
      progress: Boolean,
      finish: Option[Finish])

  val NoNews: News = News(None, Nil, workload = false, progress = false, None)
}
