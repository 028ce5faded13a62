package org.apache.spark.scheduler.cluster.hrm

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkConf, SparkContext, SparkException}

/**
 * An AppMaster that hangs before it has read what it must know, of which there is more than a pipe
 * holds. Argument: a directory. Exit: 0 the context refuses to be made, in time and with a reason, and
 * leaves nothing behind; 1 it does not; 4 it waits.
 */
object DeafAppMaster {
  private val LimitS = 60L
  private val Environment = 512 * 1024

  def main(arguments: Array[String]): Unit = {
    val program = new File(arguments(0), "appmaster")
    Files.write(program.toPath, "#!/bin/sh\nexec sleep 300\n".getBytes(UTF_8))
    program.setExecutable(true)
    val test = new Thread(() => {
      val said = refusal(program)
      val right = said.contains("it has not read what it must know within 2 s")
      // It has been killed; until Java has seen that takes a moment, within the limit below.
      ProcessHandle.current().children().iterator().asScala.foreach(_.onExit().join())
      println(s"${if (right) "OK" else "FAILED:"} $said")
      Runtime.getRuntime.halt(if (right) 0 else 1)
    })
    test.start()
    test.join(TimeUnit.SECONDS.toMillis(LimitS))
    println(s"FAILED: it waits\n  ${test.getStackTrace.mkString("\n  ")}")
    Runtime.getRuntime.halt(4)
  }

  private def refusal(program: File): String =
    try {
      new SparkContext(new SparkConf(false)
        .setMaster("hrm://127.0.0.1:1").setAppName("deaf")
        .set("spark.ui.enabled", "false").set("spark.authenticate", "false")
        .set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.executorEnv.LARGE", "x" * Environment)
        .set("spark.hrm.python", program.toString)
        .set("spark.hrm.registration.timeout", "2s"))
      "the context was made"
    } catch { case e: SparkException => e.getMessage }
}
