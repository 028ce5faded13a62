package org.apache.spark.scheduler.cluster.hrm

import java.util.{Map => JavaMap, Properties, UUID}

import scala.collection.mutable
import scala.util.Try

/**
 * Distinguishes streams from batch by observation, without a setting by the user.
 *
 * A structured-streaming query whose trigger is default, ProcessingTime, Continuous or RealTime
 * runs until it is stopped: the application is a stream while it has one. AvailableNow and Once
 * process what is there and end: batch. The event names a query but not its trigger, so the trigger
 * is read from the running query, found by its shared state or, where no session leads there, by the
 * thread that runs it. Where both fail, behaviour decides: a query that idles, waiting for data, or
 * that has run for long, is a stream.
 *
 * Jobs of the older DStreams carry the batch that they belong to. They run until their context is
 * stopped, which emits no event: such an application is a stream from its first batch to its end.
 *
 * All access is by reflection: the sql jar may be absent, and its classes move between Spark
 * versions.
 */
private[hrm] final class StreamDetector {
  import StreamDetector._

  // Guards the two fields below, and writes of `current`. A leaf: see HrmSchedulerBackend.
  private val lock = new Object
  private val queries = mutable.LinkedHashMap.empty[UUID, Query]
  private var dstreams = false
  // Immutable, to be read without the lock.
  @volatile private var current = Seen(Nil, None)

  /** The names of running queries. */
  def names: Seq[String] = current.names

  /** None: there has been no stream. */
  def workload: Option[Workload] = current.workload

  /** What this event of the listener bus has changed. */
  def observe(event: AnyRef): Change = event.getClass.getName match {
    case QueryStarted => started(event)
    case QueryTerminated =>
      val runId = uuid(event, "runId")
      change(queries.remove(runId))
    case QueryIdle => behaved(uuid(event, "runId"), idle = true)
    case QueryProgress =>
      Try(UUID.fromString(call(call(event, "progress"), "runId").toString))
        .map(behaved(_, idle = false)).getOrElse(NoChange)
    case _ => NoChange
  }

  /** What a job that starts with these properties has changed. */
  def observe(properties: Properties): Change =
    if (properties == null || properties.getProperty(BatchTime) == null) NoChange
    else change { dstreams = true }

  /** Spark is queried before the lock is taken: some of its methods take locks of its sessions. */
  private def started(event: AnyRef): Change = {
    val runId = uuid(event, "runId")
    val name = Option(call(event, "name")).map(_.toString).getOrElse(uuid(event, "id").toString)
    val trigger = triggerOf(uuid(event, "id"), runId)
    change(queries(runId) = new Query(name, trigger, trigger.exists(t => !Ending.contains(t))))
  }

  private def behaved(runId: UUID, idle: Boolean): Change = change {
    queries.get(runId).filter(_.trigger.isEmpty)
      .filter(query => idle || System.nanoTime() - query.startedNs > LongRunNs)
      .foreach(_.endless = true)
  }

  /** `update` must only touch the fields of this object. */
  private def change(update: => Unit): Change = lock.synchronized {
    val before = current
    update
    current = Seen(queries.values.map(_.name).toList, decide(before.workload))
    Change(current.names != before.names, current.workload != before.workload)
  }

  private def decide(before: Option[Workload]): Option[Workload] = {
    val streaming = before.exists(_.workloadClass == Stream)
    queries.values.find(_.endless) match {
      case Some(query) if !streaming =>
        val seen = query.trigger.map(t => s"trigger $t").getOrElse("it keeps waiting for data")
        Some(Workload(Stream, s"streaming query '${query.name}' was started ($seen)"))
      case None if dstreams && !streaming => Some(Workload(Stream, "it runs batches of DStreams"))
      case None if streaming && !dstreams =>
        Some(Workload(Batch, "the last streaming query has ended"))
      case _ => before
    }
  }
}

private[hrm] object StreamDetector {
  /** A workload class, and the reason for it. */
  final case class Workload(workloadClass: String, evidence: String)

  /** What changed: the names of running queries, the class. */
  final case class Change(names: Boolean, workload: Boolean)

  val NoChange: Change = Change(names = false, workload = false)

  private final case class Seen(names: List[String], workload: Option[Workload])

  private val Stream = "STREAM"
  private val Batch = "BATCH"
  private val Events = "org.apache.spark.sql.streaming.StreamingQueryListener$"
  private val QueryStarted = Events + "QueryStartedEvent"
  private val QueryTerminated = Events + "QueryTerminatedEvent"
  private val QueryIdle = Events + "QueryIdleEvent"
  private val QueryProgress = Events + "QueryProgressEvent"
  private val BatchTime = "spark.streaming.internal.batchTime"
  private val Ending = Set("AvailableNow", "OneTime")
  private val LongRunNs = java.util.concurrent.TimeUnit.SECONDS.toNanos(60)

  private final class Query(val name: String, val trigger: Option[String], var endless: Boolean) {
    val startedNs: Long = System.nanoTime()
  }

  private def call(target: AnyRef, method: String): AnyRef = {
    val found = target.getClass.getMethod(method)
    found.setAccessible(true)
    found.invoke(target)
  }

  private def uuid(event: AnyRef, method: String): UUID = call(event, method).asInstanceOf[UUID]

  /** The kind of trigger: "ProcessingTime", "AvailableNow" and so on. */
  private def triggerOf(id: UUID, runId: UUID): Option[String] =
    byState(id).orElse(byThread(runId)).flatMap { query =>
      Try(call(query, "trigger")).toOption
        .map(_.getClass.getSimpleName.stripSuffix("$").stripSuffix("Trigger"))
    }

  private def byState(id: UUID): Option[AnyRef] =
    first(Seq("getDefaultSession", "getActiveSession").iterator.flatMap { getter =>
      val query = for {
        session <- session(getter)
        active <- Try(call(call(session, "sharedState"), "activeStreamingQueries")).toOption
        query <- Option(active.asInstanceOf[JavaMap[UUID, AnyRef]].get(id))
      } yield query
      query.iterator
    })

  private def session(getter: String): Option[AnyRef] =
    Try {
      val sql = Class.forName("org.apache.spark.sql.SparkSession", true, loader)
      sql.getMethod(getter).invoke(null).asInstanceOf[Option[AnyRef]]
    }.getOrElse(None)

  /** The thread of a query carries the run's id in its name and the query as its enclosing object. */
  private def byThread(runId: UUID): Option[AnyRef] = {
    var group = Thread.currentThread().getThreadGroup
    while (group.getParent != null) group = group.getParent
    val threads = new Array[Thread](group.activeCount() * 2 + 16)
    val count = group.enumerate(threads)
    val named = threads.iterator.take(count).filter(_.getName.contains(runId.toString))
    first(named.flatMap { thread =>
      val query = Try {
        val outer = thread.getClass.getDeclaredField("$outer")
        outer.setAccessible(true)
        outer.get(thread)
      }
      query.toOption.iterator
    })
  }

  private def first[T](found: Iterator[T]): Option[T] =
    if (found.hasNext) Some(found.next()) else None

  private def loader: ClassLoader =
    Option(Thread.currentThread().getContextClassLoader).getOrElse(getClass.getClassLoader)
}
