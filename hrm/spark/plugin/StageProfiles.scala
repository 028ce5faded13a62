package org.apache.spark.scheduler.cluster.hrm

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.resource.ResourceProfileManager

/**
 * Lets stages request resource profiles of their own.
 *
 * Spark decides by the master's address which cluster managers support such profiles, and HRM's is not on its list.
 * The decision is kept in a field that is read for every profile, and is changed here. If a Spark has no such field,
 * it refuses stage profiles with its own message, and everything else works.
 */
private[hrm] object StageProfiles extends Logging {
  private val Field = "isStandaloneOrLocalCluster"

  def allow(manager: ResourceProfileManager): Unit =
    try {
      val field = classOf[ResourceProfileManager].getDeclaredField(Field)
      field.setAccessible(true)
      field.setBoolean(manager, true)
    } catch {
      case NonFatal(e) => logWarning(s"this Spark admits no resource profiles of stages on HRM: $e")
    }
}
