package org.apache.spark.scheduler.cluster.hrm

import java.net.InetAddress
import java.security.SecureRandom
import java.util.{Base64, LinkedHashMap => JMap}
import java.util.concurrent.{CountDownLatch, FutureTask, RejectedExecutionException}
import java.util.concurrent.{ScheduledExecutorService, TimeUnit}

import com.fasterxml.jackson.databind.ObjectMapper
import py4j.{CallbackClient, GatewayServer}

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging

/**
 * Keeps one AppMaster alive.
 *
 * Before the application is registered, an AppMaster that ends is an error of its own making, and
 * is reported at once. Later it is started again, after a growing pause, up to a number of times;
 * one that has lived for a while clears the count. A start that fails counts as a death. One that
 * no longer asks for events hangs, and is treated as dead.
 */
private[hrm] final class AppMasterSupervisor(
    conf: SparkConf,
    events: EventQueue,
    listener: AppMasterListener,
    timer: ScheduledExecutorService,
    introduction: () => JMap[String, Any]) extends Logging {
  import AppMasterSupervisor._

  private val restartsMax = conf.getInt("spark.hrm.appmaster.maxRestarts", 5)
  private val hungMs = conf.getTimeAsMs("spark.hrm.appmaster.hungTimeout", "60s")
  private var running: Option[Incarnation] = None
  private var restarts = 0
  private var startedNs = 0L
  private var isRegistered = false
  private var stopped = false

  def start(): Unit = synchronized {
    launch()
    timer.scheduleWithFixedDelay(() => killIfHung(), 5, 5, TimeUnit.SECONDS)
  }

  def registered(): Unit = synchronized { isRegistered = true }

  /** From now on its end is no accident. */
  def finishing(): Unit = synchronized { stopped = true }

  /** It needs us no more: it says its last words alone, once there is a master to hear them. */
  def detached(): Unit = synchronized(running).foreach(_.end())

  /** Lets it say its last words, for at most `timeoutMs`. */
  def stop(timeoutMs: Long): Unit = {
    val last = synchronized {
      stopped = true
      running
    }
    last.foreach { incarnation =>
      if (!incarnation.awaitEnd(timeoutMs)) {
        logWarning(s"The AppMaster has not ended within $timeoutMs ms " +
          "(spark.hrm.stop.timeout); killing it")
        incarnation.process.kill()
      }
      incarnation.close()
    }
    synchronized { running = None }
  }

  private def launch(): Unit = if (!stopped) {
    val bridge = new DriverBridge(events.newGeneration(), events, listener)
    val token = newToken()
    val loopback = InetAddress.getLoopbackAddress
    // Java never calls Python here; a client that did would keep a thread for its connections.
    val silent = new CallbackClient(GatewayServer.DEFAULT_PYTHON_PORT, loopback, 0, TimeUnit.SECONDS)
    val gateway = new GatewayServer.GatewayServerBuilder(bridge)
      .javaAddress(loopback).javaPort(0).callbackClient(silent).authToken(token).build()
    startGateway(gateway)
    startedNs = System.nanoTime()
    try {
      val process = AppMasterProcess.start(conf)
      val incarnation = new Incarnation(process, gateway, bridge)
      running = Some(incarnation)
      process.onExit(() => exited(incarnation))
      val hello = introduction()
      hello.put("port", gateway.getListeningPort)
      hello.put("auth_token", token)
      process.say(new ObjectMapper().writeValueAsString(hello))
    } catch {
      case e: java.io.IOException =>
        running.foreach { incarnation =>
          incarnation.process.kill()
          incarnation.close()
        }
        gateway.shutdown()
        died(s"cannot be started (${e.getMessage}); " +
          "HRM_PYTHON or spark.hrm.python must name a Python that has hrm installed")
    }
  }

  private def exited(incarnation: Incarnation): Unit = synchronized {
    incarnation.end()
    incarnation.close()
    if (running.contains(incarnation)) {
      died(s"(process ${incarnation.process.pid}) has died; see its messages above")
    }
  }

  /** Counts it and starts the next after a pause; one that nobody wants any more is no loss. */
  private def died(how: String): Unit = if (!stopped) {
    running = None
    val livedS = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - startedNs)
    if (livedS >= SettledS) restarts = 0
    if (!isRegistered) {
      listener.failed(s"the AppMaster $how; it had not registered yet")
    } else if (restarts >= restartsMax) {
      listener.failed(s"the AppMaster died ${restarts + 1} times in a row " +
        s"(spark.hrm.appmaster.maxRestarts is $restartsMax); at last it $how")
    } else {
      val delayMs = math.min(BackoffMs << restarts, BackoffMaxMs)
      restarts += 1
      logWarning(s"The AppMaster $how; restart $restarts of $restartsMax in $delayMs ms")
      try timer.schedule((() => relaunch()): Runnable, delayMs, TimeUnit.MILLISECONDS)
      catch { case _: RejectedExecutionException => } // the application has just stopped
    }
  }

  private def relaunch(): Unit = synchronized(launch())

  private def killIfHung(): Unit = synchronized {
    if (!stopped && isRegistered && TimeUnit.SECONDS.toMillis(events.silenceS) > hungMs) {
      running.foreach { incarnation =>
        logWarning(s"The AppMaster has been silent for ${events.silenceS} s; killing it")
        incarnation.process.kill()
      }
    }
  }
}

private[hrm] object AppMasterSupervisor {
  private val BackoffMs = 100L
  private val BackoffMaxMs = 5000L
  private val SettledS = 60L

  private final class Incarnation(
      val process: AppMasterProcess,
      gateway: GatewayServer,
      bridge: DriverBridge) {
    private val over = new CountDownLatch(1)

    /** The process has ended, or goes on without us. */
    def end(): Unit = over.countDown()

    /** True: that came within the time. */
    def awaitEnd(timeoutMs: Long): Boolean = over.await(timeoutMs, TimeUnit.MILLISECONDS)

    def close(): Unit = {
      bridge.close()
      gateway.shutdown()
      process.closeStdin()
    }
  }

  /**
   * On a daemon thread, whose own threads are daemons, too: a program that ends without stopping
   * its context must not be kept alive by us.
   */
  private def startGateway(gateway: GatewayServer): Unit = {
    val starting = new FutureTask[Unit](() => gateway.start())
    val thread = new Thread(starting, "hrm-gateway")
    thread.setDaemon(true)
    thread.start()
    starting.get()
  }

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding().encodeToString(bytes)
  }
}
