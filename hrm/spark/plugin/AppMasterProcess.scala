package org.apache.spark.scheduler.cluster.hrm

import java.io.{FileOutputStream, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.Try

import org.apache.spark.SparkConf

/**
 * The AppMaster's process: everything it must know goes as one line through its standard input,
 * which then stays open: its end tells the AppMaster that the driver is gone, however that came
 * about.
 */
private[hrm] final class AppMasterProcess private (handle: ProcessHandle, stdin: OutputStream) {

  def pid: Long = handle.pid()

  def say(line: String): Unit = {
    stdin.write((line + "\n").getBytes(UTF_8))
    stdin.flush()
  }

  def onExit(action: () => Unit): Unit = handle.onExit().thenRun(() => action())

  def kill(): Unit = {
    handle.destroyForcibly()
    closeStdin()
  }

  def closeStdin(): Unit = try stdin.close() catch { case _: java.io.IOException => }
}

private[hrm] object AppMasterProcess {
  private val adopted = new AtomicBoolean(false)

  def start(conf: SparkConf): AppMasterProcess = prestarted().getOrElse(spawn(conf))

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
    } yield new AppMasterProcess(handle, stdin)

  private def number(variable: String): Option[Long] =
    sys.env.get(variable).flatMap(text => Try(text.toLong).toOption)

  private def optional[T](found: java.util.Optional[T]): Option[T] =
    if (found.isPresent) Some(found.get) else None

  private def open(path: String): Option[OutputStream] =
    try Some(new FileOutputStream(path)) catch { case _: java.io.IOException => None }

  private def spawn(conf: SparkConf): AppMasterProcess = {
    val named = conf.getOption("spark.hrm.python").orElse(sys.env.get("HRM_PYTHON"))
    val python = named.getOrElse("python3")
    val builder = new ProcessBuilder(python, "-P", "-m", "hrm.spark.appmaster")
    builder.redirectOutput(ProcessBuilder.Redirect.DISCARD)
    builder.redirectError(ProcessBuilder.Redirect.INHERIT)
    val process = builder.start()
    new AppMasterProcess(process.toHandle, process.getOutputStream)
  }
}
