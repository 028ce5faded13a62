package org.apache.spark.scheduler.cluster.hrm

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{SparkListener, SparkListenerEvent}

/**
 * A Connect server that is warm before its first client comes, and that ends by itself when none comes any more.
 *
 * Only where spark.hrm.connect.idle is set, as `hrm connect` does. When the server accepts connections, it is its own
 * first client (ConnectRehearsal), so that a user's first query finds its classes loaded, its code compiled and an
 * executor that has run one. The outcome is one line of the driver's stderr, which `hrm connect` reads
 * (hrm.cli.connect). A rehearsal that fails, or takes too long, costs that line and nothing else: it runs in a
 * thread of its own, and clients are served meanwhile.
 *
 * Idle is a server without a session and without an event of Connect for that time. A client that goes without a
 * word leaves its session until Spark closes it (spark.connect.session.manager.defaultSessionTimeout). The end is
 * that of the server's own main program: exit status 0, so that a supervised one is not started again.
 */
private[hrm] final class ConnectServer(sc: SparkContext, idleMs: Long) extends SparkListener {
  import ConnectServer._

  @volatile private var activeNs = System.nanoTime()

  override def onOtherEvent(event: SparkListenerEvent): Unit =
    if (event.getClass.getName.startsWith(ConnectService.EventPrefix)) touch()

  private def touch(): Unit = activeNs = System.nanoTime()

  private def run(): Unit = ConnectService.awaitStart(StartLimitMs, sc.isStopped) match {
    case Some(service) =>
      rehearse(service)
      touch()
      if (idleMs > 0) {
        awaitIdle(service)
        if (!sc.isStopped) end(service)
      }
    case None => if (!sc.isStopped) say(s"$NotWarm: it did not listen within ${StartLimitMs / 1000} s")
  }

  private def rehearse(service: ConnectService): Unit = {
    val begunNs = System.nanoTime()
    try {
      new ConnectRehearsal(service.address, ConnectService.token(sc.conf)).run(RehearsalLimitMs)
      say(f"$Warm after ${NANOSECONDS.toMillis(System.nanoTime() - begunNs) / 1000.0}%.1f s")
    } catch {
      // Whatever it is, such as a class that this Spark does not have: the server serves.
      case e @ (NonFatal(_) | _: LinkageError) => say(s"$NotWarm: ${HrmListener.inOneLine(ConnectService.reason(e))}")
    }
  }

  private def awaitIdle(service: ConnectService): Unit = {
    val periodMs = math.max(PeriodMinMs, math.min(PeriodMaxMs, idleMs / 10))
    while (!sc.isStopped && NANOSECONDS.toMillis(System.nanoTime() - activeNs) < idleMs) {
      Thread.sleep(periodMs)
      if (service.hasSessions) touch()
    }
  }

  private def end(service: ConnectService): Unit = {
    say(s"the Connect server ends: it had no session for ${idleMs / 1000} s ($Idle)")
    try service.stop() catch {
      case NonFatal(e) => say(s"the Connect server did not stop: ${HrmListener.inOneLine(ConnectService.reason(e))}")
    }
    Thread.sleep(EndMs) // its main program stops the context, and the JVM ends; unless something keeps it
    DriverEnd.exit(0)
  }

  private def say(line: String): Unit = System.err.println(s"HRM: $line")
}

private[hrm] object ConnectServer {
  val Idle = "spark.hrm.connect.idle"
  /** Read by hrm.cli.connect. */
  private val Warm = "the Connect server is warm"
  private val NotWarm = "the Connect server is not warm"
  private val StartLimitMs = 120000L
  private val RehearsalLimitMs = 120000L
  private val EndMs = 30000L
  private val PeriodMinMs = 100L
  private val PeriodMaxMs = 10000L

  /** Where the driver is one that asks for it: attends to its Connect server, in the background. */
  def attend(sc: SparkContext): Unit = if (sc.conf.contains(Idle)) {
    val server = new ConnectServer(sc, sc.conf.getTimeAsMs(Idle))
    sc.listenerBus.addToQueue(server, "hrm")
    val thread = new Thread(() => server.run(), "hrm-connect")
    thread.setDaemon(true)
    thread.start()
  }
}
