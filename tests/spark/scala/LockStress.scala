package org.apache.spark.scheduler.cluster.hrm

import java.io.{BufferedReader, File, IOException, InputStreamReader}
import java.lang.management.ManagementFactory
import java.net.{InetAddress, Socket}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, Semaphore, TimeUnit}
import java.util.concurrent.atomic.{AtomicInteger, AtomicLong, AtomicReference}

import scala.jdk.CollectionConverters._
import scala.util.Try

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import py4j.StringUtil

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.rpc.{RpcEndpoint, RpcEnv}
import org.apache.spark.scheduler._
import org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages.RegisterExecutor
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend
import org.apache.spark.storage.RDDInfo

/**
 * A storm on the plugin in a real driver: its context, its listener bus, its endpoint, the plugin's
 * gateway and its sockets are Spark's and py4j's own. Only the AppMaster is played, by this program,
 * which speaks py4j's protocol as the Python of a real one does; its process keeps a pipe and a pid.
 *
 * At the same time: queries start, wait for data and end; jobs start and end; executors register, are
 * asked for, are killed and end; offers are made; several threads poll; the AppMaster dies and is
 * replaced. Then the context is stopped in the midst of it. A watch looks for deadlocks all the time.
 *
 * Arguments: a directory, the least number of queries. Exit: 0 all is well, 1 something was lost, 3 a
 * deadlock, 4 not done in time. The stacks of the threads concerned go to standard output.
 */
object LockStress {
  private val LimitS = 90L
  private val StepLimitS = 20L
  private val StormMs = 8000L
  private val StagesActive = 300000
  private val QueriesWaiting = 1000 // for the plugin to hear of them
  private val QueriesAJob = 20
  private val ExecutorsAtOnce = 4
  private val AppMastersKilled = 3

  private val storm = new CountDownLatch(1) // zero: it is over
  @volatile private var begunNs = 0L

  def main(arguments: Array[String]): Unit = {
    val directory = new File(arguments(0))
    val queries = arguments(1).toInt
    watch()
    val master = new PlayedAppMaster(directory)
    master.start()
    val sc = new SparkContext(new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("storm")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.executor.instances", "0")
      .set("spark.scheduler.listenerbus.eventqueue.capacity", "1000000")
      .set("spark.hrm.python", master.program.toString)
      .set("spark.hrm.appmaster.maxRestarts", "1000")
      .set("spark.hrm.stop.timeout", s"${2 * StepLimitS}s"))
    val driver = new Driver(sc)
    begunNs = System.nanoTime()
    @volatile var posted = 0
    val posting = Seq(
      thread("queries") { posted = driver.queries(queries, StormMs) },
      thread("jobs")(driver.jobs(queries / QueriesAJob)))
    val others = Seq(
      thread("executors")(driver.executors()),
      thread("targets")(driver.targets()),
      thread("offers")(driver.offers()),
      thread("killer")(master.killSome(AppMastersKilled)))
    posting.foreach(end(_, LimitS))
    end(others.last, LimitS)
    master.calm()
    driver.queries(1, 0)
    driver.jobs(1)
    until("the last AppMaster hears how it all ended") {
      val heard = master.heard
      heard.get("class") == "BATCH" && heard.get("queries") == "0" && heard.get("jobs") == "0"
    }
    val began = System.nanoTime()
    sc.stop() // with polls under way, and others that still want executors
    val stopMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began)
    check(stopMs < TimeUnit.SECONDS.toMillis(StepLimitS), s"stop took $stopMs ms, and nobody slept")
    storm.countDown()
    others.foreach(end(_, StepLimitS))
    check(master.heard.get("finish") == "SUCCEEDED", s"heard at last: ${master.heard}")
    check(master.heard.get("targets") == "0", "targets were raised after the end")
    check(master.generations.get > AppMastersKilled, s"only ${master.generations} AppMasters")
    until("all threads of the plugin have ended")(ours.isEmpty)
    check(deadlocked.isEmpty, "a deadlock at the end")
    val tookMs = TimeUnit.NANOSECONDS.toMillis(began - begunNs)
    println(s"OK queries=$posted polls=${master.polls} kills=${master.kills} " +
      s"appmasters=${master.generations} storm_ms=$tookMs stop_ms=$stopMs")
    Runtime.getRuntime.halt(0)
  }

  def thread(name: String)(body: => Unit): Thread = {
    val thread = new Thread(() => body, s"storm-$name")
    thread.setDaemon(true)
    thread.setUncaughtExceptionHandler((_, error) => {
      error.printStackTrace()
      give(1, s"$name: $error")
    })
    thread.start()
    thread
  }

  private def end(thread: Thread, limitS: Long): Unit = {
    thread.join(TimeUnit.SECONDS.toMillis(limitS))
    check(!thread.isAlive, s"${thread.getName} has not ended")
  }

  /** Waits a moment of the storm; false: it is over. */
  def pause(ms: Long): Boolean = !storm.await(ms, TimeUnit.MILLISECONDS)

  def until(what: String, limitS: Long = StepLimitS)(condition: => Boolean): Unit = {
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(limitS)
    while (!condition) {
      if (System.nanoTime() > deadline) give(4, s"not within $limitS s: $what")
      Thread.sleep(5)
    }
  }

  def check(holds: Boolean, message: => String): Unit = if (!holds) give(1, message)

  private def give(status: Int, message: String): Unit = {
    println(s"FAILED: $message")
    if (status != 3) Thread.getAllStackTraces.asScala.foreach { case (thread, stack) =>
      println(s"\n${thread.getName} ${thread.getState}\n  ${stack.mkString("\n  ")}")
    }
    System.out.flush()
    Runtime.getRuntime.halt(status)
  }

  private def deadlocked: Seq[Long] =
    Option(ManagementFactory.getThreadMXBean.findDeadlockedThreads()).toSeq.flatten

  def watch(): Unit = thread("watch") {
    val began = System.nanoTime()
    while (true) {
      val found = deadlocked
      val afterMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began)
      if (found.nonEmpty) {
        ManagementFactory.getThreadMXBean.getThreadInfo(found.toArray, true, true).foreach { info =>
          println(s"${info.getThreadName} waits for ${info.getLockName} of ${info.getLockOwnerName}\n" +
            s"  ${info.getStackTrace.take(12).mkString("\n  ")}")
        }
        val raged = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begunNs)
        give(3, s"${found.size} threads in a deadlock, when the storm had raged for $raged ms")
      }
      if (afterMs > TimeUnit.SECONDS.toMillis(LimitS)) give(4, s"not done within $LimitS s")
      Thread.sleep(20)
    }
  }

  /** Threads in the plugin's code, or in py4j's, and those that the plugin has named. */
  def ours: Iterable[Thread] = Thread.getAllStackTraces.asScala.collect {
    case (thread, stack) if thread != Thread.currentThread() && (
      thread.getName.startsWith("hrm-") || thread.getName == "spark-listener-group-hrm" ||
        stack.exists(f => f.getClassName.startsWith("py4j.") ||
          f.getClassName.startsWith("org.apache.spark.scheduler.cluster.hrm.") &&
            !f.getClassName.contains("LockStress"))) => thread
  }

  /** What Spark's own threads do in a busy driver. */
  private final class Driver(sc: SparkContext) {
    private val backend = sc.schedulerBackend.asInstanceOf[CoarseGrainedSchedulerBackend]
    private val events = "org.apache.spark.sql.streaming.StreamingQueryListener$"
    private val nextExecutor = new AtomicInteger(0)

    // So many active stages that a report of progress takes some 20 ms, under whatever lock it is
    // made: what can meet it, does. Spark's own listeners would be busy with them, so it is spared them.
    private val Seq(listener) = sc.listenerBus.findListenersByClass[HrmListener]()
    for (id <- 1 to StagesActive) {
      listener.onStageSubmitted(SparkListenerStageSubmitted(new StageInfo(
        id, 0, "busy", 1, Seq.empty[RDDInfo], Nil, "", resourceProfileId = 0)))
    }

    // In the queue of the plugin's listener, behind it: how far that has come.
    private val heard = new Semaphore(QueriesWaiting)
    sc.listenerBus.addToQueue(new SparkListener {
      override def onOtherEvent(event: SparkListenerEvent): Unit =
        if (event.getClass.getName.endsWith("QueryTerminatedEvent")) heard.release()
    }, "hrm")

    /**
     * As many, and for as long as that, at least. Each is a stream from its first wait for data, and
     * was the only one when it ends.
     */
    def queries(count: Int, leastMs: Long): Int = {
      val untilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(leastMs)
      var number = 0
      while (number < count || System.nanoTime() < untilNs) {
        check(heard.tryAcquire(StepLimitS, TimeUnit.SECONDS), "the plugin hears no events any more")
        number += 1
        val (id, run) = (UUID.randomUUID(), UUID.randomUUID())
        post("QueryStartedEvent", id, run, s"query $number")
        post("QueryIdleEvent", id, run, "")
        post("QueryTerminatedEvent", id, run, None)
      }
      number
    }

    private def blank(parameter: Class[_]): AnyRef = parameter match {
      case text if text == classOf[String] => ""
      case option if option == classOf[Option[_]] => None
    }

    /** Their constructors differ between versions of Spark in what comes last. */
    private def post(kind: String, first: AnyRef*): Unit = {
      val maker = Class.forName(events + kind).getConstructors.minBy(_.getParameterCount)
      val rest = maker.getParameterTypes.drop(first.size).toSeq.map(blank(_))
      val event = maker.newInstance((first ++ rest): _*)
      sc.listenerBus.post(event.asInstanceOf[SparkListenerEvent])
    }

    def jobs(count: Int): Unit = (1 to count).foreach { id =>
      sc.listenerBus.post(SparkListenerJobStart(id, 0, Nil))
      sc.listenerBus.post(SparkListenerJobEnd(id, 0, JobSucceeded))
    }

    def targets(): Unit = while (pause(0)) {
      Try(backend.requestTotalExecutors(Map(0 -> nextExecutor.get), Map(0 -> 0), Map(0 -> Map.empty)))
    }

    def executors(): Unit = {
      while (pause(1)) Try {
        val alive = backend.getExecutorIds()
        if (alive.size < ExecutorsAtOnce) register(nextExecutor.incrementAndGet().toString)
        else backend.killExecutors(alive.take(1), adjustTargetNumExecutors = false, countFailures = false)
      }
    }

    private def register(id: String): Unit = {
      val deaf = new RpcEndpoint {
        override val rpcEnv: RpcEnv = sc.env.rpcEnv
        override def receive: PartialFunction[Any, Unit] = { case _ => }
      }
      val ref = sc.env.rpcEnv.setupEndpoint(s"executor-$id", deaf)
      backend.driverEndpoint.askSync[Boolean](
        RegisterExecutor(id, ref, "127.0.0.1", 1, Map.empty, Map.empty, Map.empty, 0))
    }

    def offers(): Unit = while (pause(1)) Try {
      backend.reviveOffers()
      backend.getExecutorIds().foreach(backend.isExecutorActive)
    }
  }

  /** All AppMasters of this driver, one after the other. */
  final class PlayedAppMaster(directory: File) {
    private val pollers = 3
    private val json = new ObjectMapper()
    private val current = new AtomicReference[Session]()
    private val calming = new CountDownLatch(1)
    val generations, kills = new AtomicInteger(0)
    val polls = new AtomicLong(0)

    /** Passes on what it is told by a file, and lives as long as its pipe. */
    val program: File = {
      val file = new File(directory, "appmaster")
      Files.write(file.toPath, s"""#!/bin/sh
IFS= read -r line || exit 0
printf '%s' "$$line" > "$directory/$$$$.half" && mv "$directory/$$$$.half" "$directory/$$$$.hello"
exec cat > /dev/null
""".getBytes(UTF_8))
      file.setExecutable(true)
      file
    }

    /** What the one of now has heard last: of class, queries, jobs, targets, excluded, finish. */
    def heard: ConcurrentHashMap[String, String] = current.get.heard

    def start(): Unit = thread("appmasters") {
      while (true) {
        directory.listFiles((_, name) => name.endsWith(".hello")).foreach { file =>
          val hello = json.readTree(new String(Files.readAllBytes(file.toPath), UTF_8))
          val pid = file.getName.stripSuffix(".hello").toLong
          file.delete()
          val session = new Session(pid, hello)
          current.set(session)
          generations.incrementAndGet()
          session.start()
        }
        Thread.sleep(2)
      }
    }

    def killSome(count: Int): Unit = (1 to count).foreach { number =>
      pause(200)
      val victim = current.get
      ProcessHandle.of(victim.pid).ifPresent(handle => handle.destroyForcibly(): Unit)
      until(s"AppMaster ${number + 1} has come")(current.get ne victim)
    }

    /** From now on one thread polls, so that what is heard last is what was said last. */
    def calm(): Unit = {
      calming.countDown()
      until("all but one have ended their polls")(current.get.others.forall(!_.isAlive))
    }

    private final class Session(val pid: Long, hello: JsonNode) {
      val heard = new ConcurrentHashMap[String, String]()
      @volatile var others: Seq[Thread] = Nil

      def start(): Unit = {
        thread(s"calls-$pid")(untilItBreaks(_.call("registered", "sapp-1")))
        thread(s"poll-$pid")(untilItBreaks(poll(_, last = true)))
        others = (2 to pollers).map(n => thread(s"poll-$n-$pid")(untilItBreaks(poll(_, last = false))))
      }

      private def poll(connection: Connection, last: Boolean): Unit =
        while (last || calming.getCount > 0) {
          val events = json.readTree(connection.call("nextEvents", "i20"))
          polls.incrementAndGet()
          events.asScala.foreach(hear(connection, _))
        }

      private def hear(connection: Connection, event: JsonNode): Unit =
        event.get("event").asText match {
          case "class" => heard.put("class", event.get("class").asText)
          case "progress" =>
            heard.put("queries", event.get("streaming_queries").size.toString)
            heard.put("jobs", event.get("active_jobs").asText)
          case "targets" =>
            heard.put("targets", event.get("targets").asScala.map(_.get("count").asInt).sum.toString)
          case "kill" => event.get("executors").asScala.foreach { id =>
            kills.incrementAndGet()
            connection.call("executorEnded", s"s${id.asText}", "i0", "skilled", "bfalse", "s")
          }
          case "excluded" =>
            heard.put("excluded", event.get("hosts").asScala.map(_.asText).mkString(" "))
          case "finish" =>
            heard.put("finish", event.get("state").asText)
            // Spark has stopped to listen; that is no failure, and does not end the AppMaster.
            connection.call("executorEnded", "slate", "i0", "sit had run on", "bfalse", "s")
            connection.call("detached")
        }

      private def untilItBreaks(body: Connection => Unit): Unit =
        try {
          val port = hello.get("port").asInt
          val connection = new Connection(port, hello.get("auth_token").asText)
          try body(connection) finally connection.close()
        } catch { case _: IOException => } // the gateway of one that is over is closed
    }
  }

  /** py4j's text protocol, as far as an AppMaster needs it. */
  private final class Connection(port: Int, token: String) {
    private val socket = new Socket(InetAddress.getLoopbackAddress, port)
    socket.setSoTimeout(TimeUnit.SECONDS.toMillis(LimitS).toInt)
    private val reader = new BufferedReader(new InputStreamReader(socket.getInputStream, UTF_8))
    send(s"A\n$token\n")

    /** `arguments` in py4j's form: i and s before integers and strings, b before booleans. */
    def call(method: String, arguments: String*): String =
      send(s"c\nt\n$method\n${arguments.map(_ + "\n").mkString}e\n")

    private def send(command: String): String = {
      socket.getOutputStream.write(command.getBytes(UTF_8))
      val answer = reader.readLine()
      if (answer == null) throw new IOException("closed")
      if (!answer.startsWith("!y")) throw new IllegalStateException(s"refused: $answer")
      if (answer.startsWith("!ys")) StringUtil.unescape(answer.drop(3)) else ""
    }

    def close(): Unit = socket.close()
  }
}
