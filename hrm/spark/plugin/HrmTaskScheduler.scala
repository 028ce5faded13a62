package org.apache.spark.scheduler.cluster.hrm

import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{TaskDescription, TaskSchedulerImpl, WorkerOffer}

/**
 * Spark's scheduler of tasks, which schedules nothing before its context has a backend.
 *
 * It makes its tracker of exclusions (spark.excludeOnFailure) at the first offer or question, and
 * that takes the backend which the context then has, to kill executors with; without one it never
 * kills any. A backend's endpoint makes empty offers from the moment that it exists, and the context
 * has the backend only once that is constructed: the constructor starts an AppMaster meanwhile.
 * There are no tasks yet, and offers are repeated (spark.scheduler.revive.interval).
 */
private[hrm] final class HrmTaskScheduler(context: SparkContext) extends TaskSchedulerImpl(context) {

  private def hasBackend: Boolean = context.schedulerBackend != null

  override def resourceOffers(
      offers: IndexedSeq[WorkerOffer],
      isAllFreeResources: Boolean): Seq[Seq[TaskDescription]] =
    if (hasBackend) super.resourceOffers(offers, isAllFreeResources) else Nil

  override def excludedNodes(): Set[String] = if (hasBackend) super.excludedNodes() else Set.empty
}
