package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.scheduler.{ExecutorDecommissionInfo, SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.scheduler.cluster.{CoarseGrainedClusterMessages, CoarseGrainedSchedulerBackend}

/**
 * Executors that are decommissioned and disconnect, before HRM says why they were stopped: what a signal has
 * decommissioned is removed for HRM's reason, what Spark has for Spark's.
 *
 * Argument: a directory. Exit: 0 all is well, 1 it is not, 4 not done in time.
 */
object DecommissionReason {
  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    new LockStress.PlayedAppMaster(new File(arguments(0))).start()
    val conf = new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("decommissioned")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.executor.instances", "0")
      .set("spark.hrm.python", new File(arguments(0), "appmaster").toString)
    val sc = new SparkContext(conf)
    val removed = new ConcurrentHashMap[String, String]()
    sc.addSparkListener(new SparkListener {
      override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit =
        removed.put(event.executorId, event.reason)
    })
    val backend = sc.schedulerBackend.asInstanceOf[HrmSchedulerBackend]
    val signalled = DepartingExecutor.register(sc, "1", "127.0.0.1")
    val scaledDown = DepartingExecutor.register(sc, "2", "127.0.0.1")
    val driver = signalled.setupEndpointRef(
      sc.env.rpcEnv.address, CoarseGrainedSchedulerBackend.ENDPOINT_NAME)
    LockStress.check(
      driver.askSync[Boolean](CoarseGrainedClusterMessages.ExecutorDecommissioning("1")),
      "it is not decommissioned")
    backend.decommissionExecutor("2", ExecutorDecommissionInfo("scaled down"), adjustTargetNumExecutors = false)
    Seq(signalled, scaledDown).foreach(_.shutdown())
    Thread.sleep(300) // as long as a report takes
    Seq("1", "2").foreach(backend.executorEnded(_, 0, "preempted for root.ml", false, ""))
    LockStress.until("both are removed")(removed.size == 2)
    println(s"OK ${removed.get("1")}; ${removed.get("2")}")
    Runtime.getRuntime.halt(0)
  }
}
