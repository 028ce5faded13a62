package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}
import java.util.concurrent.TimeUnit

import scala.collection.mutable

/**
 * What Spark has to tell the AppMaster, in the order in which it must be heard.
 *
 * The queue is bounded because it conflates: of targets, class and progress only the newest
 * survives; a kill is one executor id, of which there are as many as executors. A new AppMaster (a
 * higher generation) hears the whole state again; what an older one still asks for is answered with
 * nothing.
 */
private[hrm] final class EventQueue(progress: () => JMap[String, Any]) {
  import EventQueue._

  private var generation = 0
  private var targets: Option[JList[JMap[String, Any]]] = None
  private var workload: Option[JMap[String, Any]] = None
  private var finish: Option[JMap[String, Any]] = None
  // Told to the current AppMaster already?
  private var targetsHeard, workloadHeard, finishHeard = false
  // Executors that Spark wants gone and whose end nobody has reported, and those of them not yet told.
  private val kills = mutable.LinkedHashSet.empty[String]
  private val killsUnheard = mutable.LinkedHashSet.empty[String]
  private var progressChanged = false
  private var progressSentNs = 0L
  @volatile private var polledNs = System.nanoTime()

  def setTargets(total: JList[JMap[String, Any]]): Unit = synchronized {
    targets = Some(total)
    targetsHeard = false
    notifyAll()
  }

  def kill(executorIds: Seq[String]): Unit = synchronized {
    kills ++= executorIds
    killsUnheard ++= executorIds
    notifyAll()
  }

  def setWorkload(workloadClass: String, evidence: String): Unit = synchronized {
    workload = Some(event("class", "class" -> workloadClass, "evidence" -> evidence))
    workloadHeard = false
    notifyAll()
  }

  def setFinish(state: String, message: String): Unit = synchronized {
    if (finish.isEmpty) {
      finish = Some(event("finish", "state" -> state, "message" -> message))
      finishHeard = false
      notifyAll()
    }
  }

  def progressed(): Unit = synchronized {
    if (!progressChanged) {
      progressChanged = true
      notifyAll()
    }
  }

  def ended(executorId: String): Unit = synchronized {
    kills -= executorId
    killsUnheard -= executorId
  }

  /** A new AppMaster begins to listen: it is told everything that still holds. */
  def newGeneration(): Int = synchronized {
    generation += 1
    targetsHeard = false
    workloadHeard = false
    finishHeard = false
    killsUnheard ++= kills
    progressChanged = true
    polledNs = System.nanoTime()
    notifyAll()
    generation
  }

  /** Nobody listens any more: a call that still waits must not keep the JVM alive. */
  def close(reader: Int): Unit = synchronized {
    if (reader == generation) {
      generation += 1
      notifyAll()
    }
  }

  /** Seconds since the AppMaster last asked. */
  def silenceS: Long = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - polledNs)

  /** All that is new for `generation`; waits up to `timeoutMs` for something. */
  def poll(reader: Int, timeoutMs: Long): JList[JMap[String, Any]] = synchronized {
    val limitMs = math.min(timeoutMs, PollMaxMs)
    val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMs)
    polledNs = System.nanoTime()
    var batch = if (reader == generation) take() else new JList[JMap[String, Any]]()
    while (batch.isEmpty && reader == generation && deadlineNs > System.nanoTime()) {
      val waitNs = math.min(deadlineNs - System.nanoTime(), untilProgressNs)
      wait(math.max(1L, TimeUnit.NANOSECONDS.toMillis(waitNs)))
      if (reader == generation) batch = take()
    }
    polledNs = System.nanoTime()
    batch
  }

  private def untilProgressNs: Long =
    if (progressChanged) progressSentNs + ProgressIntervalNs - System.nanoTime() else Long.MaxValue

  private def take(): JList[JMap[String, Any]] = {
    val batch = new JList[JMap[String, Any]]()
    // Targets go before kills: Spark lowers the target first and then names the victim.
    if (targets.isDefined && !targetsHeard) {
      batch.add(event("targets", "targets" -> targets.get))
      targetsHeard = true
    }
    if (killsUnheard.nonEmpty) {
      val ids = new JList[String]()
      killsUnheard.foreach(ids.add)
      batch.add(event("kill", "executors" -> ids))
      killsUnheard.clear()
    }
    if (workload.isDefined && !workloadHeard) {
      batch.add(workload.get)
      workloadHeard = true
    }
    if (progressChanged && (untilProgressNs <= 0 || finish.isDefined && !finishHeard)) {
      val report = progress()
      report.put("event", "progress")
      batch.add(report)
      progressChanged = false
      progressSentNs = System.nanoTime()
    }
    if (finish.isDefined && !finishHeard) {
      batch.add(finish.get)
      finishHeard = true
    }
    batch
  }
}

private[hrm] object EventQueue {
  val PollMaxMs = 30000L
  val ProgressIntervalNs: Long = TimeUnit.MILLISECONDS.toNanos(500)

  def event(name: String, fields: (String, Any)*): JMap[String, Any] = {
    val event = new JMap[String, Any]()
    event.put("event", name)
    fields.foreach { case (key, value) => event.put(key, value) }
    event
  }
}
