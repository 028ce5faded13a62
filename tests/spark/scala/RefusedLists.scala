package org.apache.spark.scheduler.cluster.hrm

import scala.util.Try

import org.apache.spark.{SparkConf, SparkContext}

/** Contexts with lists of files that only YARN reads. The last four lines say why they are refused. */
object RefusedLists {
  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    val why = Seq("archives", "files", "jars", "pyFiles").map { kind =>
      val made = Try(new SparkContext(new SparkConf(false)
        .setMaster("hrm://127.0.0.1:1").setAppName("refused")
        .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
        .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        .set(s"spark.yarn.dist.$kind", "a,b")))
      LockStress.check(made.isFailure, s"spark.yarn.dist.$kind is taken")
      Iterator.iterate(made.failed.get)(_.getCause).takeWhile(_ != null)
        .map(_.getMessage).find(_.startsWith("HRM: ")).getOrElse(made.failed.get.toString)
    }
    why.foreach(line => println(line.stripPrefix("HRM: ")))
    Runtime.getRuntime.halt(0)
  }
}
