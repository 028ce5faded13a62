package org.apache.spark.scheduler.cluster.hrm

import java.io.File

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.{SparkConf, SparkContext}

/**
 * Contexts that cannot be made, for settings that Spark reads when the AppMaster runs already: of the task
 * scheduler, and of what comes after it. The program goes on, as a notebook would; the AppMaster must hear of the
 * failure and end, and a context with sound settings is made afterwards.
 *
 * Argument: a directory. Exit: 0 all is well, 1 it is not, 4 not done in time.
 */
object AbandonedContext {
  private val Bad = Seq(
    Map("spark.scheduler.mode" -> "FAIR", "spark.scheduler.allocation.file" -> "/dev/null/none"),
    Map("spark.stage.maxConsecutiveAttempts" -> "many"))

  def main(arguments: Array[String]): Unit = {
    LockStress.watch()
    val master = new LockStress.PlayedAppMaster(new File(arguments(0)))
    master.start()
    val sound = new SparkConf(false)
      .setMaster("hrm://127.0.0.1:1").setAppName("abandoned")
      .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.executor.instances", "0")
      .set("spark.hrm.python", master.program.toString)
    Bad.zipWithIndex.foreach { case (settings, before) =>
      val name = settings.keys.max
      val made = try Some(new SparkContext(sound.clone.setAll(settings))) catch { case NonFatal(_) => None }
      LockStress.check(made.isEmpty, s"a context is made with a bad $name")
      LockStress.until(s"the AppMaster hears of a bad $name"){
        master.generations.get > before && master.heard.get("finish") == "FAILED"
      }
      LockStress.until(s"its process ends after a bad $name")(processes.isEmpty)
      LockStress.until(s"the plugin's threads end after a bad $name")(LockStress.ours.isEmpty)
    }
    new SparkContext(sound).stop()
    LockStress.check(master.generations.get == Bad.size + 1, s"${master.generations} AppMasters")
    LockStress.check(master.heard.get("finish") == "SUCCEEDED", s"heard at last: ${master.heard}")
    println("OK")
    Runtime.getRuntime.halt(0)
  }

  private def processes: Seq[ProcessHandle] = ProcessHandle.current().children().iterator().asScala.toSeq
}
