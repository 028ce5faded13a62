package org.apache.spark.scheduler.cluster.hrm

import java.util.{ArrayList => JList, LinkedHashMap => JMap}

import com.fasterxml.jackson.databind.ObjectMapper

/** Messages from the AppMaster, received by the backend. */
private[hrm] trait AppMasterListener {
  def registered(applicationId: String): Unit
  def failed(message: String): Unit
  def profileRefused(profileId: Int, message: String): Unit
  def detached(): Unit
  def nodeTimeout(timeoutMs: Int): Unit
  def limitExecutors(most: Int): Unit
  def executorStarted(executorId: String, node: String): Unit
  def executorEnded(
      executorId: String,
      exitCode: Int,
      reason: String,
      causedByApp: Boolean,
      lostHost: String): Unit

  /**
   * The hosts on which Spark schedules nothing now (spark.excludeOnFailure). Takes no lock once the
   * backend has started.
   */
  def excludedHosts: Set[String]
}

/**
 * The object that one AppMaster sees through py4j.
 *
 * Python calls, Java returns, never the other way round, so that an AppMaster that hangs cannot
 * block Spark. Every AppMaster gets a bridge of its own: unfinished calls of a dead one have no
 * effect.
 */
class DriverBridge private[hrm] (
    generation: Int,
    events: EventQueue,
    observed: HrmListener,
    listener: AppMasterListener) {
  import DriverBridge._

  private val json = new ObjectMapper()
  @volatile private var open = true
  /** As this AppMaster has heard of them; only nextEvents uses it. */
  private var excluded = Set.empty[String]

  private[hrm] def close(): Unit = {
    open = false
    events.close(generation)
  }

  /**
   * JSON array of the events since the last call, in the order in which they must be handled; empty
   * after `timeoutMs` without any.
   */
  def nextEvents(timeoutMs: Int): String = {
    val news = events.poll(generation, timeoutMs.toLong)
    val batch = new JList[JMap[String, Any]]()
    // Before the targets: what is requested next must not be placed there.
    val hosts = listener.excludedHosts
    if (hosts != excluded) {
      excluded = hosts
      val list = new JList[String]()
      hosts.toSeq.sorted.foreach(list.add)
      batch.add(event("excluded", "hosts" -> list))
    }
    // Targets go before kills: Spark lowers the target first and then names the victim.
    news.targets.foreach(targets => batch.add(event("targets", "targets" -> targets)))
    if (news.kills.nonEmpty) {
      val ids = new JList[String]()
      news.kills.foreach(ids.add)
      batch.add(event("kill", "executors" -> ids))
    }
    if (news.workload) observed.workload.foreach { seen =>
      batch.add(event("class", "class" -> seen.workloadClass, "evidence" -> seen.evidence))
    }
    val ends = news.finish.isDefined
    if (news.progress || (ends && (observed.hasExecutorTasks || observed.hasTraining))) {
      val report = observed.progress(ends)
      report.put("event", "progress")
      batch.add(report)
    }
    news.finish.foreach { finish =>
      batch.add(event("finish", "state" -> finish.state, "message" -> finish.message))
    }
    json.writeValueAsString(batch)
  }

  def registered(applicationId: String): Unit = if (open) listener.registered(applicationId)

  /** The master will never serve this application as it is. */
  def refused(message: String): Unit = if (open) listener.failed(message)

  /** The application cannot continue. */
  def failed(message: String): Unit = if (open) listener.failed(message)

  /** No node can serve this resource profile, which stages have requested for themselves. */
  def profileRefused(profileId: Int, message: String): Unit =
    if (open) listener.profileRefused(profileId, message)

  /** No wait for this AppMaster is needed: it ends by itself, once the master has its final update. */
  def detached(): Unit = if (open) listener.detached()

  /**
   * How long a node may be silent before the master takes it for lost; 0: there is no master at present.
   * A method that older plugins lack: `DriverBridge.Understands`.
   */
  def nodeTimeout(timeoutMs: Int): Unit = if (open) listener.nodeTimeout(timeoutMs)

  /** Those beyond so many of the default profile finish their tasks and end. A method that older plugins lack. */
  def limitExecutors(most: Int): Unit = if (open) listener.limitExecutors(most)

  def executorStarted(executorId: String, node: String): Unit =
    if (open) listener.executorStarted(executorId, node)

  /** `lostHost`: the host that disappeared with the executor; empty where its end was seen. */
  def executorEnded(
      executorId: String,
      exitCode: Int,
      reason: String,
      causedByApp: Boolean,
      lostHost: String): Unit =
    if (open) listener.executorEnded(executorId, exitCode, reason, causedByApp, lostHost)
}

private[hrm] object DriverBridge {
  /**
   * Methods that were added later. After an upgrade of HRM, the AppMaster of a running driver may be newer than
   * its plugin, and calls only those of them that its introduction names.
   */
  val Understands: Seq[String] = Seq("nodeTimeout", "profileRefused", "limitExecutors")

  private def event(name: String, fields: (String, Any)*): JMap[String, Any] = {
    val event = new JMap[String, Any]()
    event.put("event", name)
    fields.foreach { case (key, value) => event.put(key, value) }
    event
  }
}
