package org.apache.spark.scheduler.cluster.hrm

import java.io.IOException
import java.net.InetAddress
import java.security.SecureRandom
import java.util.{Base64, LinkedHashMap => JMap}
import java.util.concurrent.{CountDownLatch, ExecutionException, FutureTask}
import java.util.concurrent.{RejectedExecutionException, ScheduledExecutorService}
import java.util.concurrent.{TimeoutException, TimeUnit}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.ObjectMapper
import py4j.{CallbackClient, GatewayServer}

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging

/**
 * Keeps one AppMaster alive.
 *
 * Before the application is registered, an AppMaster that ends is an error of its own making, and
 * is reported immediately. Later it is restarted, after a growing pause, up to a number of times;
 * one that has lived for a while clears the count. A start that fails counts as a death. One that
 * no longer polls for events hangs, and is treated as dead.
 *
 * The first is started by the thread that calls start(); later starts and ends happen on the one
 * thread of `timer`. The work of starting and ending is done without the lock.
 */
private[hrm] final class AppMasterSupervisor(
    conf: SparkConf,
    events: EventQueue,
    observed: HrmListener,
    listener: AppMasterListener,
    timer: ScheduledExecutorService,
    introduction: () => JMap[String, Any]) extends Logging {
  import AppMasterSupervisor._

  private val restartsMax = conf.getInt("spark.hrm.appmaster.maxRestarts", 5)
  // For the gateway to listen, and for the process to read what it must know.
  private val startMs = conf.getTimeAsMs("spark.hrm.registration.timeout", "30s")
  private val hungMs = conf.getTimeAsMs("spark.hrm.appmaster.hungTimeout", "60s")

  // Guards all of the fields below. A leaf: see HrmSchedulerBackend.
  private val lock = new Object
  private var running: Option[Incarnation] = None
  private var launching = false
  private var restarts = 0
  private var startedNs = 0L
  private var isRegistered = false
  private var finishes = false // the end of the AppMaster is expected
  private var closed = false // and no other is started

  def start(): Unit = {
    launch()
    timer.scheduleWithFixedDelay(() => killIfHung(), 5, 5, TimeUnit.SECONDS)
  }

  def registered(): Unit = lock.synchronized { isRegistered = true }

  /** From now on the end of the AppMaster is expected. */
  def finishing(): Unit = lock.synchronized { finishes = true }

  /** Releases it: it sends its final update alone, once a master can receive it. */
  def detached(): Unit = lock.synchronized(running).foreach(_.end())

  /** Lets it send its final update, for at most `timeoutMs`. */
  def stop(timeoutMs: Long): Unit = {
    val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs)
    def leftMs = TimeUnit.NANOSECONDS.toMillis(deadlineNs - System.nanoTime())
    val last = lock.synchronized {
      finishes = true
      // An AppMaster that is being started sends it, too.
      while (launching && leftMs > 0) lock.wait(leftMs)
      closed = true
      running
    }
    last.foreach { incarnation =>
      if (!incarnation.awaitEnd(leftMs)) {
        logWarning(s"The AppMaster has not ended within $timeoutMs ms " +
          "(spark.hrm.stop.timeout); killing it")
        incarnation.process.kill()
      }
      incarnation.close()
      forget(incarnation)
    }
  }

  private def launch(): Unit = if (beginLaunch()) {
    var begun: Option[Incarnation] = None
    try {
      val bridge = new DriverBridge(events.newGeneration(), events, observed, listener)
      val token = newToken()
      val gateway = openGateway(bridge, token, startMs)
      val process = try AppMasterProcess.start(conf) catch {
        case e: IOException => gateway.shutdown(); throw e
      }
      val incarnation = new Incarnation(process, gateway, bridge)
      begun = Some(incarnation)
      if (!install(incarnation)) throw new IOException("the application has ended")
      process.onExit(() => exited(incarnation))
      val hello = introduction()
      hello.put("port", gateway.getListeningPort)
      hello.put("auth_token", token)
      if (process.isEarly) hello.put("environment", System.getenv())
      process.say(new ObjectMapper().writeValueAsString(hello), startMs)
    } catch {
      case e: Throwable =>
        // Before its end is seen, which would be reported in the place of this reason. One that has been counted as
        // dead meanwhile is not counted twice.
        val counts = begun.forall(forget)
        begun.foreach { incarnation =>
          incarnation.process.kill()
          incarnation.close()
        }
        if (!e.isInstanceOf[IOException]) throw e
        if (counts) died(s"cannot be started (${e.getMessage}); " +
          "HRM_PYTHON or spark.hrm.python must name a Python that has hrm installed")
    } finally launched()
  }

  private def beginLaunch(): Boolean = lock.synchronized {
    launching = !finishes
    if (launching) startedNs = System.nanoTime()
    launching
  }

  private def launched(): Unit = lock.synchronized {
    launching = false
    lock.notifyAll()
  }

  /** False: the AppMaster is no longer needed. */
  private def install(incarnation: Incarnation): Boolean = lock.synchronized {
    if (!closed) running = Some(incarnation)
    !closed
  }

  /** True: it was the running one. */
  private def forget(incarnation: Incarnation): Boolean = lock.synchronized {
    val ran = running.contains(incarnation)
    if (ran) running = None
    ran
  }

  /** Called on Java's thread that watches processes, which must not be blocked. */
  private def exited(incarnation: Incarnation): Unit = {
    incarnation.end()
    onTimer(0) {
      incarnation.close()
      if (forget(incarnation)) {
        died(s"(process ${incarnation.process.pid}) has died; see its messages above")
      }
    }
  }

  /** Counts it and starts the next after a pause; an expected end does not count. */
  private def died(how: String): Unit = {
    val pause = lock.synchronized {
      val livedS = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - startedNs)
      if (livedS >= SettledS) restarts = 0
      if (finishes) NoLoss
      else if (!isRegistered) Fatal(s"the AppMaster $how; it had not registered yet")
      else if (restarts >= restartsMax) {
        Fatal(s"the AppMaster died ${restarts + 1} times in a row " +
          s"(spark.hrm.appmaster.maxRestarts is $restartsMax); at last it $how")
      } else {
        restarts += 1
        Again(restarts, math.min(BackoffMs << (restarts - 1), BackoffMaxMs))
      }
    }
    pause match {
      case NoLoss =>
      case Fatal(message) => listener.failed(message)
      case Again(number, delayMs) =>
        logWarning(s"The AppMaster $how; restart $number of $restartsMax in $delayMs ms")
        onTimer(delayMs)(relaunch())
    }
  }

  /** An exception would be lost here, and with it the application's connection to the master. */
  private def relaunch(): Unit =
    try launch() catch { case NonFatal(e) => died(s"cannot be started ($e)") }

  private def killIfHung(): Unit =
    if (TimeUnit.SECONDS.toMillis(events.silenceS) > hungMs) {
      val hung = lock.synchronized(running.filter(_ => isRegistered && !finishes))
      hung.foreach { incarnation =>
        logWarning(s"The AppMaster has been silent for ${events.silenceS} s; killing it")
        incarnation.process.kill()
      }
    }

  private def onTimer(delayMs: Long)(action: => Unit): Unit =
    try timer.schedule((() => action): Runnable, delayMs, TimeUnit.MILLISECONDS)
    catch { case _: RejectedExecutionException => } // the application has just stopped
}

private[hrm] object AppMasterSupervisor {
  private val BackoffMs = 100L
  private val BackoffMaxMs = 5000L
  private val SettledS = 60L

  /** What the death of an AppMaster leads to. */
  private sealed trait Consequence
  private case object NoLoss extends Consequence
  private final case class Fatal(message: String) extends Consequence
  private final case class Again(number: Int, delayMs: Long) extends Consequence

  private final class Incarnation(
      val process: AppMasterProcess,
      gateway: GatewayServer,
      bridge: DriverBridge) {
    private val over = new CountDownLatch(1)

    /** The process has ended, or continues without the driver. */
    def end(): Unit = over.countDown()

    /** True: it ended within the time. */
    def awaitEnd(timeoutMs: Long): Boolean = over.await(timeoutMs, TimeUnit.MILLISECONDS)

    def close(): Unit = {
      bridge.close()
      gateway.shutdown()
      process.closeStdin()
    }
  }

  private def openGateway(bridge: DriverBridge, token: String, limitMs: Long): GatewayServer = {
    val loopback = InetAddress.getLoopbackAddress
    // Java never calls Python here; a client that did would keep a thread for its connections.
    val silent = new CallbackClient(GatewayServer.DEFAULT_PYTHON_PORT, loopback, 0, TimeUnit.SECONDS)
    val gateway = new GatewayServer.GatewayServerBuilder(bridge)
      .javaAddress(loopback).javaPort(0).callbackClient(silent).authToken(token).build()
    try startGateway(gateway, limitMs) catch {
      case e @ (_: ExecutionException | _: TimeoutException) =>
        gateway.shutdown()
        val why = Option(e.getCause).map(_.toString).getOrElse(s"not within $limitMs ms")
        throw new IOException(s"no port of the driver's listens for it: $why", e)
    }
    gateway
  }

  /**
   * On a daemon thread, whose own threads are daemons, too: the plugin must not keep a program
   * alive that ends without stopping its context.
   */
  private def startGateway(gateway: GatewayServer, limitMs: Long): Unit = {
    val starting = new FutureTask[Unit](() => gateway.start())
    val thread = new Thread(starting, "hrm-gateway")
    thread.setDaemon(true)
    thread.start()
    starting.get(limitMs, TimeUnit.MILLISECONDS)
  }

  /** A secret of 256 bits. */
  def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding().encodeToString(bytes)
  }
}
