package org.apache.spark.scheduler.cluster.hrm

import java.io.{DataInputStream, EOFException, FileDescriptor, FileInputStream, FileOutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.ObjectMapper

import org.apache.spark.deploy.SparkSubmit
import org.apache.spark.util.Utils

/**
 * A driver started ahead of demand: it rehearses a small application, puts everything back that an application could
 * notice (JvmState), and waits for one order. Then it is the SparkSubmit of that application, and of no other.
 *
 * Orders come on standard input, which no other process can read, because environments carry secrets: four bytes of
 * length, then {"environment": {...}, "properties": {...}, "arguments": [...]}; a second one, empty, says that the
 * taker has agreed, and what follows is the application's own input. Replies go, a line each, to the descriptor that
 * HRM_WARM_REPLIES names: `ready`, then `fits`, or `declined` with the reason. The end of input ends it.
 *
 * A random secret of the application turns Spark's RPC authentication on, as spark-env.sh does for others.
 */
object WarmDriver {
  private val Replies = "HRM_WARM_REPLIES"
  private val OrderBytesMax = 16 << 20

  def main(args: Array[String]): Unit = {
    val replies = new FileOutputStream(s"/proc/self/fd/${System.getenv(Replies)}")
    def reply(line: String): Unit = replies.write(s"$line\n".getBytes(UTF_8))
    val reached = JvmState.addresses()
    prepare(reply)
    val input = new DataInputStream(new FileInputStream(FileDescriptor.in))
    val order = new ObjectMapper().readTree(read(input))
    val problem =
      if (JvmState.addresses() != reached) Some("the addresses of this machine have changed") else None
    problem.foreach { why => reply(s"declined $why"); System.exit(0) }
    reply("fits")
    read(input)
    replies.close()
    WarmJvm.takeOver(order)
    System.setProperty("spark.authenticate", "true")
    System.setProperty("spark.authenticate.secret", AppMasterSupervisor.newToken())
    val arguments = order.get("arguments").asScala.map(_.asText()).toArray
    System.setProperty("sun.java.command", (classOf[SparkSubmit].getName +: arguments).mkString(" "))
    SparkSubmit.main(arguments)
  }

  private def prepare(reply: String => Unit): Unit = {
    val place = Files.createTempDirectory("hrm-rehearsal")
    val problem = try {
      val before = JvmState.capture()
      WarmJvm.apart {
        LateClasses.load()
        WarmJvm.rehearse(place,
          "spark.local.dir" -> place.toString,
          "spark.sql.catalogImplementation" -> "in-memory",
          // Java lets a program set this once: it is the application's.
          "spark.sql.defaultUrlStreamHandlerFactory.enabled" -> "false")
      }
      before.restore()
      None
    } catch { case NonFatal(error) => Some(error.toString) }
    finally Utils.deleteRecursively(place.toFile)
    problem.foreach { why => reply(s"declined $why"); System.exit(1) }
    AppMasterProcess.prepare()
    System.gc() // what was restored is garbage only now
    System.out.flush()
    System.err.flush()
    reply("ready")
  }

  /** One frame; the end of input ends this program. Byte-exact: what follows is another's. */
  private def read(input: DataInputStream): Array[Byte] =
    try {
      val length = input.readInt()
      if (length < 0 || length > OrderBytesMax) System.exit(1)
      val frame = new Array[Byte](length)
      input.readFully(frame)
      frame
    } catch { case _: EOFException => System.exit(0); Array.emptyByteArray }
}

/** Classes that a driver loads and a rehearsal in local mode does not. */
private[hrm] object LateClasses {
  private val Names = Seq(
    "org.apache.spark.api.python.PythonGatewayServer",
    "org.apache.spark.api.python.Py4JServer",
    "org.apache.spark.api.python.PythonRDD",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.api.python.PythonRunner",
    "org.apache.spark.api.python.PythonWorkerFactory",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.deploy.SparkSubmit",
    "org.apache.spark.deploy.SparkSubmitArguments",
    "org.apache.spark.deploy.PythonRunner",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.scheduler.cluster.hrm.HrmClusterManager",
    "org.apache.spark.scheduler.cluster.hrm.HrmSchedulerBackend",
    "org.apache.spark.scheduler.cluster.hrm.HrmListener",
    "org.apache.spark.scheduler.cluster.hrm.StreamDetector",
    "org.apache.spark.scheduler.cluster.hrm.AppMasterSupervisor",
    "org.apache.spark.scheduler.cluster.hrm.DriverBridge",
    "org.apache.spark.scheduler.cluster.hrm.EventQueue",
    "org.apache.spark.scheduler.cluster.hrm.ExecutorLaunch",
    "org.apache.spark.scheduler.EventLoggingListener",
    "org.apache.spark.ui.SparkUI",
    "py4j.GatewayServer",
    "py4j.ClientServer")

  /** What a version of Spark does not have is not needed there. */
  def load(): Unit = Names.foreach { name =>
    try Class.forName(name) catch { case _: ClassNotFoundException => }
  }
}
