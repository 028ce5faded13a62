package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.nio.file.Files
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

import org.apache.spark.{SecurityManager, SparkContext, SparkException}
import org.apache.spark.internal.config
import org.apache.spark.rpc.RpcEndpointAddress
import org.apache.spark.scheduler.{ExternalClusterManager, SchedulerBackend}
import org.apache.spark.scheduler.{TaskScheduler, TaskSchedulerImpl}
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend

/**
 * A cluster of one executor, which this process starts itself: the smallest application whose
 * driver and executor are what they are on a real cluster. Class-data archives are made of it.
 *
 * The executor's command is in the file that HRM_REHEARSAL_EXECUTOR names, one argument per line.
 */
class RehearsalClusterManager extends ExternalClusterManager {

  override def canCreate(masterURL: String): Boolean = masterURL == RehearsalClusterManager.Master

  override def createTaskScheduler(sc: SparkContext, masterURL: String): TaskScheduler =
    new TaskSchedulerImpl(sc)

  override def createSchedulerBackend(
      sc: SparkContext, masterURL: String, scheduler: TaskScheduler): SchedulerBackend =
    new RehearsalBackend(scheduler.asInstanceOf[TaskSchedulerImpl], sc)

  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend)
}

private[hrm] object RehearsalClusterManager {
  val Master = "spark+rehearsal"
  val CommandFile = "HRM_REHEARSAL_EXECUTOR"
}

private[hrm] class RehearsalBackend(scheduler: TaskSchedulerImpl, sc: SparkContext)
  extends CoarseGrainedSchedulerBackend(scheduler, sc.env.rpcEnv) {

  private val LeaveLimitS = 120L
  @volatile private var executor: Option[Process] = None
  @volatile private var stopping = false

  override protected val minRegisteredRatio: Double = 1.0

  override def sufficientResourcesRegistered(): Boolean = totalRegisteredExecutors.get() >= 1

  override def start(): Unit = {
    super.start()
    val named = Option(System.getenv(RehearsalClusterManager.CommandFile)).getOrElse(
      throw new SparkException(s"HRM: ${RehearsalClusterManager.CommandFile} names no file"))
    val url = RpcEndpointAddress(
      conf.get(config.DRIVER_HOST_ADDRESS), conf.get(config.DRIVER_PORT),
      CoarseGrainedSchedulerBackend.ENDPOINT_NAME).toString
    val command = Files.readAllLines(new File(named).toPath).asScala.toSeq.flatMap {
      case "{{JAVA_OPTIONS}}" => ExecutorLaunch.javaOptions(conf).asScala
      case "{{DRIVER_URL}}" => Seq(url)
      case "{{APP_ID}}" => Seq(applicationId())
      case argument => Seq(argument)
    }
    val builder = new ProcessBuilder(command.asJava).redirectErrorStream(true)
      .redirectOutput(new File(s"$named.log"))
    builder.environment().put(
      SecurityManager.ENV_AUTH_SECRET, sc.env.securityManager.getSecretKey())
    val process = builder.start()
    executor = Some(process)
    val watch = new Thread(() => if (process.waitFor() != 0 && !stopping) Runtime.getRuntime.halt(1))
    watch.setDaemon(true)
    watch.start()
  }

  /** The executor writes its archive as it ends, so this waits for its end, within a limit. */
  override def stop(): Unit = try {
    stopping = true
    super.stop()
  } finally {
    executor.filterNot(_.waitFor(LeaveLimitS, TimeUnit.SECONDS)).foreach(_.destroyForcibly())
  }
}
