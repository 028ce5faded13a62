package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.util.concurrent.TimeUnit

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.rpc.{RpcEndpoint, RpcEnv}
import org.apache.spark.scheduler.ExecutorDecommissionInfo
import org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages.RegisterExecutor
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend

/**
 * An executor that is decommissioned, and then breaks its connection as its machine goes away. No AppMaster
 * ever says how it ended, and a reason would be awaited for an hour: Spark must let go of it by itself, soon.
 * The executor next to it, which is not decommissioned, keeps its place.
 *
 * Argument: a directory. Exit: 0 all is well, 1 it is not, 4 not done in time.
 */
object DepartingExecutor {
  private val LimitMs = 2000L

  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    new LockStress.PlayedAppMaster(new File(arguments(0))).start()
    val conf = new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("departing")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.executor.instances", "0")
      .set("spark.hrm.python", new File(arguments(0), "appmaster").toString)
      .set("spark.hrm.executor.lossReasonTimeout", "1h")
    val sc = new SparkContext(conf)
    val backend = sc.schedulerBackend.asInstanceOf[CoarseGrainedSchedulerBackend]
    val Seq(departing, silent) = Seq("1", "2").map(register(sc, _, "127.0.0.1"))
    LockStress.until("both are registered")(backend.getExecutorIds().toSet == Set("1", "2"))
    LockStress.check(
      backend.decommissionExecutor("1", ExecutorDecommissionInfo("drained"), adjustTargetNumExecutors = false),
      "it is not decommissioned")
    val began = System.nanoTime()
    silent.shutdown()
    departing.shutdown()
    LockStress.until("the decommissioned one is gone")(!backend.getExecutorIds().contains("1"))
    val tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began)
    LockStress.check(tookMs < LimitMs, s"that took $tookMs ms")
    LockStress.until("the other is disabled")(!backend.isExecutorActive("2"))
    LockStress.check(backend.getExecutorIds() == Seq("2"), "the other's reason is awaited")
    sc.stop()
    println(s"OK gone after $tookMs ms")
    Runtime.getRuntime.halt(0)
  }

  /** A client of the driver's, as executors are; it answers nothing. */
  def register(sc: SparkContext, id: String, host: String): RpcEnv = {
    val env = RpcEnv.create(
      s"executor-$id", "127.0.0.1", 0, sc.conf, sc.env.securityManager, clientMode = true)
    val deaf = env.setupEndpoint(s"executor-$id", new RpcEndpoint {
      override val rpcEnv: RpcEnv = env
      override def receive: PartialFunction[Any, Unit] = { case _ => }
    })
    val driver = env.setupEndpointRef(sc.env.rpcEnv.address, CoarseGrainedSchedulerBackend.ENDPOINT_NAME)
    driver.askSync[Boolean](
      RegisterExecutor(id, deaf, host, 1, Map.empty, Map.empty, Map.empty, 0))
    env
  }
}
