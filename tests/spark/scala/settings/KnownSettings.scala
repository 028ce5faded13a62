package org.apache.spark.internal.config

import scala.jdk.CollectionConverters._

/**
 * Prints every setting of Spark's own registry, a line each: its name and the version that it came with.
 * A name by which a setting is read as well, and that is none of its own, follows without a version.
 *
 * A setting registers when the object that holds it is initialised, so the arguments name all classes
 * that define some. A class that cannot be initialised here, because it needs what this Spark comes
 * without, is reported on standard error.
 */
object KnownSettings {
  def main(holders: Array[String]): Unit = {
    holders.foreach { name =>
      try Class.forName(name, true, getClass.getClassLoader) catch {
        case e: LinkageError => System.err.println(s"$name: $e")
      }
    }
    ConfigEntry.knownConfigs.values.asScala.toSeq.sortBy(_.key).foreach { entry =>
      println(s"${entry.key}\t${entry.version}")
      (entry.alternatives ++ entry.prependedKey).foreach(name => println(s"$name\t"))
    }
  }
}
