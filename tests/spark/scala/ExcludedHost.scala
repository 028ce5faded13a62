package org.apache.spark.scheduler.cluster.hrm

import java.io.File

import scala.collection.mutable

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.scheduler.{ExecutorFailuresInTaskSet, TaskSchedulerImpl}
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend

/**
 * A host that Spark excludes for the failures of its tasks, in a driver whose backend has made offers while it
 * was constructed: Spark has the executors there killed, as spark.excludeOnFailure.killExcludedExecutors states,
 * and the AppMaster hears of it. The executor of another host stays.
 *
 * Argument: a directory. Exit: 0 all is well, 1 it is not, 4 not done in time.
 */
object ExcludedHost {
  private val Bad = "127.0.0.2"

  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    val master = new LockStress.PlayedAppMaster(new File(arguments(0)))
    master.start()
    val conf = new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("excluded")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.executor.instances", "0")
      .set("spark.scheduler.revive.interval", "1ms")
      .set("spark.excludeOnFailure.enabled", "true")
      .set("spark.excludeOnFailure.killExcludedExecutors", "true")
      .set("spark.excludeOnFailure.application.maxFailedTasksPerExecutor", "1")
      .set("spark.excludeOnFailure.application.maxFailedExecutorsPerNode", "1")
      .set("spark.hrm.python", master.program.toString)
    val sc = new SparkContext(conf)
    val backend = sc.schedulerBackend.asInstanceOf[CoarseGrainedSchedulerBackend]
    DepartingExecutor.register(sc, "1", "127.0.0.1")
    DepartingExecutor.register(sc, "2", Bad)
    LockStress.until("both are registered")(backend.getExecutorIds().toSet == Set("1", "2"))
    fail(sc, "2")
    LockStress.until("the AppMaster hears that one is killed")(master.kills.get > 0)
    LockStress.until("it is gone")(backend.getExecutorIds() == Seq("1"))
    LockStress.until("the AppMaster hears of the host")(master.heard.get("excluded") == Bad)
    sc.stop()
    println(s"OK killed ${master.kills}")
    Runtime.getRuntime.halt(0)
  }

  /** A task of a stage has failed at this executor, before the stage succeeded elsewhere. */
  private def fail(sc: SparkContext, executorId: String): Unit = {
    val failures = new ExecutorFailuresInTaskSet(Bad)
    failures.updateWithFailure(0, System.currentTimeMillis())
    val scheduler = sc.taskScheduler.asInstanceOf[TaskSchedulerImpl]
    scheduler.synchronized {
      scheduler.healthTrackerOpt.get.updateExcludedForSuccessfulTaskSet(
        0, 0, mutable.HashMap(executorId -> failures))
    }
  }
}
