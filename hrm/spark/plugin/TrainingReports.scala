package org.apache.spark.scheduler.cluster.hrm

import java.util.{LinkedHashMap => JMap}

import org.apache.spark.SparkContext

/**
 * What an application says of a model that it trains: `hrm.report` in Python, and this in Scala and Java. The master's
 * policy of elasticity takes executors from applications that learn no more, and gives them to others.
 */
object TrainingReports {
  /** So many are kept until the AppMaster fetches them. */
  private[hrm] val EpochsMax = 200

  /**
   * `accuracy`: a share of 1, or no number where there is none. `seconds`: since the report before. `epochs`: how many
   * there will be at most, 0: unknown. False: the context is not on HRM, and nothing is reported.
   */
  def report(
      sc: SparkContext, epoch: Long, loss: Double, accuracy: Double, seconds: Double, epochs: Long): Boolean =
    sc.schedulerBackend match {
      case backend: HrmSchedulerBackend =>
        backend.trained(Epoch(epoch, loss, accuracy, seconds, epochs))
        true
      case _ => false
    }

  private[hrm] final case class Epoch(
      number: Long, loss: Double, accuracy: Double, seconds: Double, epochs: Long) {
    def describe: JMap[String, Any] = {
      val epoch = new JMap[String, Any]()
      epoch.put("epoch", number)
      epoch.put("loss", loss)
      if (!accuracy.isNaN) epoch.put("accuracy", accuracy)
      epoch.put("seconds", seconds)
      epoch.put("epochs", epochs)
      epoch
    }
  }
}
