package org.apache.spark.scheduler.cluster.hrm

import java.io.{FileOutputStream, IOException, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{ExecutionException, RejectedExecutionException}
import java.util.concurrent.{TimeoutException, TimeUnit}
import java.util.concurrent.atomic.{AtomicBoolean, AtomicReference}

import scala.util.Try

import org.apache.spark.SparkConf
import org.apache.spark.util.ThreadUtils

/**
 * The AppMaster's process. Its whole input is one line on its standard input, which then stays
 * open: the end of it notifies the AppMaster that the driver is gone, for whatever reason.
 */
private[hrm] final class AppMasterProcess private (
    handle: ProcessHandle,
    stdin: OutputStream,
    /** It was started before the driver had its environment, and must learn it. */
    val isEarly: Boolean) {

  // The only thread that touches the pipe, so that a process that does not read blocks no other.
  private val writer = ThreadUtils.newDaemonSingleThreadExecutor("hrm-appmaster-stdin")
  private val closing = new AtomicBoolean(false)

  def pid: Long = handle.pid()

  /** Throws IOException if the process has ended, or has not read it within `limitMs`. */
  def say(line: String, limitMs: Long): Unit = {
    val writing: Runnable = () => {
      stdin.write((line + "\n").getBytes(UTF_8))
      stdin.flush()
    }
    try writer.submit(writing).get(limitMs, TimeUnit.MILLISECONDS) catch {
      case e: ExecutionException => throw new IOException(e.getCause.getMessage, e)
      case e: RejectedExecutionException => throw new IOException("it has ended", e)
      case e: TimeoutException =>
        throw new IOException(s"it has not read what it must know within ${limitMs / 1000} s", e)
    }
  }

  def onExit(action: () => Unit): Unit = handle.onExit().thenRun(() => action())

  def kill(): Unit = {
    handle.destroyForcibly()
    closeStdin()
  }

  /** Called once what is being written has been read, or the reader is gone. */
  def closeStdin(): Unit = if (closing.compareAndSet(false, true)) {
    writer.execute(() => try stdin.close() catch { case _: IOException => })
    writer.shutdown()
  }
}

private[hrm] object AppMasterProcess {
  private val adopted = new AtomicBoolean(false)
  private val early = new AtomicReference[Option[Process]](None)

  def start(conf: SparkConf): AppMasterProcess =
    prepared(conf).orElse(prestarted()).getOrElse(spawn(conf))

  /** For a driver that is started ahead of demand: its AppMaster waits with it, all imported. */
  def prepare(): Unit = early.set(Some(run(python(None))))

  /** The one that waits, once, if it is of the right Python. */
  private def prepared(conf: SparkConf): Option[AppMasterProcess] =
    early.getAndSet(None).filter { process =>
      val fits = process.isAlive && conf.getOption("spark.hrm.python").isEmpty
      if (!fits) process.destroyForcibly()
      fits
    }.map(process => new AppMasterProcess(process.toHandle, process.getOutputStream, isEarly = true))

  /**
   * The process that spark-env.sh started before this JVM, so that Python's imports overlap the
   * driver's own start. The shell has become this JVM by exec: the process is our child, its pipe
   * is ours.
   */
  private def prestarted(): Option[AppMasterProcess] =
    for {
      pid <- number("HRM_APPMASTER_PID")
      descriptor <- number("HRM_APPMASTER_FD")
      handle <- optional(ProcessHandle.of(pid))
      parent <- optional(handle.parent())
      if parent.pid() == ProcessHandle.current().pid() && handle.isAlive
      if adopted.compareAndSet(false, true)
      stdin <- open(s"/proc/self/fd/$descriptor")
    } yield new AppMasterProcess(handle, stdin, isEarly = false)

  private def number(variable: String): Option[Long] =
    sys.env.get(variable).flatMap(text => Try(text.toLong).toOption)

  private def optional[T](found: java.util.Optional[T]): Option[T] =
    if (found.isPresent) Some(found.get) else None

  private def open(path: String): Option[OutputStream] =
    try Some(new FileOutputStream(path)) catch { case _: IOException => None }

  private def spawn(conf: SparkConf): AppMasterProcess = {
    val process = run(python(conf.getOption("spark.hrm.python")))
    new AppMasterProcess(process.toHandle, process.getOutputStream, isEarly = false)
  }

  private def python(named: Option[String]): String =
    named.orElse(sys.env.get("HRM_PYTHON")).getOrElse("python3")

  private def run(python: String): Process =
    new ProcessBuilder(python, "-P", "-m", "hrm.spark.appmaster")
      .redirectOutput(ProcessBuilder.Redirect.DISCARD)
      .redirectError(ProcessBuilder.Redirect.INHERIT)
      .start()
}
