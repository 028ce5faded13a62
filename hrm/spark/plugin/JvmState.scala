package org.apache.spark.scheduler.cluster.hrm

import java.net.{InetAddress, NetworkInterface}
import java.util.TimeZone
import java.util.concurrent.ThreadPoolExecutor
import java.util.concurrent.TimeUnit.MILLISECONDS
import java.util.concurrent.atomic.{AtomicInteger, AtomicLong}

import scala.jdk.CollectionConverters._
import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.fs.FileSystem
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.metrics.source.HiveCatalogMetrics
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.sql.SparkSession
import org.apache.spark.util.{AccumulatorContext, Utils}

/**
 * What a JVM was before it rehearsed an application, so that the next one finds it as new.
 *
 * Code, loaded classes and compiled queries stay: they are what is gained. Everything that an application could
 * observe or inherit is put back: system properties, the session, the environment of Spark, the user, file systems,
 * Hadoop's settings, the log's settings, numbers that are counted from 0, directories. What cannot be put back must
 * not be there: a thread that the rehearsal has left behind, or a Spark that keeps such a thing elsewhere, ends the JVM
 * before it is ready, and applications start without one.
 */
private[hrm] final class JvmState private (properties: Map[String, String], threads: Set[Thread]) {
  import JvmState._

  /** Throws IllegalStateException where something stays that an application could meet. */
  def restore(): Unit = {
    // Parts of the API of sessions are another class in Spark 4.
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    require(SparkContext.getActive.isEmpty, "a context is active")
    SparkEnv.set(null)
    FileSystem.closeAll()
    FileSystem.clearStatistics()
    ResourceProfile.clearDefaultProfile()
    HiveCatalogMetrics.reset()
    AccumulatorContext.clear()
    Counters.foreach { case (name, home) => resetCounter(name, home) }
    Histograms.foreach(resetHistogram)
    resetLazy("org.apache.spark.deploy.SparkHadoopUtil$", "instance")
    UserGroupInformation.reset()
    Utils.clearLocalRootDirs()
    restoreProperties()
    Logging.uninitialize()
    awaitThreads()
  }

  private def restoreProperties(): Unit = {
    val now = System.getProperties
    now.stringPropertyNames().asScala.filterNot(properties.contains).foreach(now.remove(_))
    properties.foreach { case (name, value) => now.setProperty(name, value) }
  }

  /** Pools let their threads end a minute after the last use, or at once where they are asked to. */
  private def awaitThreads(): Unit = {
    val deadlineNs = System.nanoTime() + MILLISECONDS.toNanos(ThreadsLimitMs)
    def left = liveThreads() -- threads
    val pools = left.flatMap(poolOf)
    val kept = pools.map(pool => pool -> pool.getKeepAliveTime(MILLISECONDS))
    pools.foreach(_.setKeepAliveTime(ThreadsPeriodMs, MILLISECONDS))
    while (left.nonEmpty && System.nanoTime() < deadlineNs) Thread.sleep(ThreadsPeriodMs)
    kept.foreach { case (pool, timeMs) => pool.setKeepAliveTime(timeMs, MILLISECONDS) }
    require(left.isEmpty, s"the rehearsal has left the thread ${left.map(_.getName).toSeq.sorted.mkString(", ")}")
  }
}

private[hrm] object JvmState {
  private val ThreadsLimitMs = 90000L
  private val ThreadsPeriodMs = 50L

  /** Threads of Java and of libraries, which serve all code of a JVM and know no application. */
  private val Harmless = Seq("process reaper", "Log4j2-", "Cleaner-", "org.apache.hadoop.fs.FileSystem$Statistics",
    "Common-Cleaner", "Finalizer", "Reference Handler", "Signal Dispatcher", "Attach Listener", "rehearsal",
    "Keep-Alive-Timer", "DestroyJavaVM", "Notification Thread")

  /**
   * Numbers that Spark counts for a whole JVM and that people see, of queries and of resource profiles, and the classes
   * that have them. Those of expressions and accumulators continue: loaded classes keep some that they have taken, and
   * none may be given twice.
   */
  private val Counters = Seq(
    "_nextExecutionId" -> "org.apache.spark.sql.execution.SQLExecution$",
    "nextProfileId" -> "org.apache.spark.resource.ResourceProfile$")

  private val Histograms = Seq("METRIC_SOURCE_CODE_SIZE", "METRIC_COMPILATION_TIME",
    "METRIC_GENERATED_CLASS_BYTECODE_SIZE", "METRIC_GENERATED_METHOD_BYTECODE_SIZE")

  def capture(): JvmState = {
    TimeZone.getDefault // which sets a property
    val properties = System.getProperties
    val names = properties.stringPropertyNames().asScala
    new JvmState(names.map(name => name -> properties.getProperty(name)).toMap, liveThreads())
  }

  /** The addresses by which this machine can be reached: Spark finds them out once in a JVM. */
  def addresses(): Set[String] = {
    val found = NetworkInterface.getNetworkInterfaces.asScala.flatMap(_.getInetAddresses.asScala)
    val own = InetAddress.getLocalHost
    found.filterNot(_.isLinkLocalAddress).map(_.getHostAddress).toSet ++ Set(own.getHostName, own.getHostAddress)
  }

  private def liveThreads(): Set[Thread] =
    Thread.getAllStackTraces.keySet.asScala.toSet.filter { thread =>
      thread.isAlive && thread != Thread.currentThread() && !Harmless.exists(thread.getName.startsWith(_))
    }

  /** The pool that a thread works for, where this Java shows it. */
  private def poolOf(thread: Thread): Option[ThreadPoolExecutor] =
    try {
      val holder = Try(valueIn(thread, classOf[Thread], "holder")).getOrElse(thread) // since Java 21
      val name = if (holder eq thread) "target" else "task"
      val worker = valueIn(holder, if (holder eq thread) classOf[Thread] else holder.getClass, name)
      valueIn(worker, worker.getClass, "this$0") match {
        case pool: ThreadPoolExecutor => Some(pool)
        case _ => None
      }
    } catch { case NonFatal(_) => None }

  private def valueIn(target: AnyRef, home: Class[_], name: String): AnyRef = {
    val field = home.getDeclaredField(name)
    field.setAccessible(true)
    field.get(target)
  }

  private def require(holds: Boolean, otherwise: => String): Unit =
    if (!holds) throw new IllegalStateException(otherwise)

  /** The field of a Scala object, whether it is static or not. */
  private def valueOf(home: String, name: String): Option[AnyRef] =
    try {
      val found = Class.forName(home)
      val field = found.getDeclaredField(name)
      field.setAccessible(true)
      Option(field.get(found.getField("MODULE$").get(null)))
    } catch { case _: ClassNotFoundException | _: NoSuchFieldException => None }

  private def resetCounter(name: String, home: String): Unit =
    valueOf(home, name) match {
      case Some(counter: AtomicLong) => counter.set(0L)
      case Some(counter: AtomicInteger) => counter.set(0)
      case _ => throw new IllegalStateException(s"this Spark has no counter $name in $home")
    }

  private def resetHistogram(name: String): Unit = {
    val home = "org.apache.spark.metrics.source.CodegenMetrics$"
    valueOf(home, name) match {
      case Some(histogram: com.codahale.metrics.Histogram) =>
        set(histogram, "count", new java.util.concurrent.atomic.LongAdder())
        set(histogram, "reservoir", new com.codahale.metrics.ExponentiallyDecayingReservoir())
      case _ => throw new IllegalStateException(s"this Spark has no histogram $name in $home")
    }
  }

  private def set(target: AnyRef, name: String, value: AnyRef): Unit = {
    val field = target.getClass.getDeclaredField(name)
    field.setAccessible(true)
    field.set(target, value)
  }

  /** A lazy value of a Scala object is computed again when it is used next. */
  private def resetLazy(home: String, name: String): Unit =
    try {
      val found = Class.forName(home)
      val module = found.getField("MODULE$").get(null)
      val known = found.getDeclaredField("bitmap$0")
      val field = found.getDeclaredField(name)
      Seq(known, field).foreach(_.setAccessible(true))
      field.set(module, null)
      if (known.getType == classOf[Boolean]) known.setBoolean(module, false)
      else known.setByte(module, 0)
    } catch {
      case error: NoSuchFieldException =>
        throw new IllegalStateException(s"this Spark keeps $name of $home elsewhere: $error")
    }
}
