package org.apache.spark.scheduler.cluster.hrm

import com.fasterxml.jackson.databind.ObjectMapper

/** What the AppMaster may say; the backend listens. */
private[hrm] trait AppMasterListener {
  def registered(applicationId: String): Unit
  def failed(message: String): Unit
  def detached(): Unit
  def executorStarted(executorId: String, node: String): Unit
  def executorEnded(
      executorId: String,
      exitCode: Int,
      reason: String,
      causedByApp: Boolean,
      lostHost: String): Unit
}

/**
 * The object that one AppMaster sees through py4j.
 *
 * Python calls, Java answers, never the other way round, so that an AppMaster that hangs cannot
 * hold up Spark. Every AppMaster gets a bridge of its own: what a dead one left unfinished is heard
 * by nobody.
 */
class DriverBridge private[hrm] (
    generation: Int,
    events: EventQueue,
    listener: AppMasterListener) {

  private val json = new ObjectMapper()
  @volatile private var open = true

  private[hrm] def close(): Unit = {
    open = false
    events.close(generation)
  }

  /** JSON array of what happened since the last call; empty after `timeoutMs` without news. */
  def nextEvents(timeoutMs: Int): String =
    json.writeValueAsString(events.poll(generation, timeoutMs.toLong))

  def registered(applicationId: String): Unit = if (open) listener.registered(applicationId)

  /** The master will never serve this application as it is. */
  def refused(message: String): Unit = if (open) listener.failed(message)

  /** The application cannot go on. */
  def failed(message: String): Unit = if (open) listener.failed(message)

  /** Nobody needs to wait for this AppMaster: it ends by itself, when the master has heard it. */
  def detached(): Unit = if (open) listener.detached()

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
