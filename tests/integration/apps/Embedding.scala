package org.example

import java.io.File
import java.util.concurrent.{ConcurrentLinkedQueue, CountDownLatch, TimeUnit}

import scala.collection.JavaConverters._

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.launcher.{AbstractLauncher, InProcessLauncher, SparkAppHandle, SparkLauncher}

/**
 * A program that has Spark inside, or starts it. Its first argument is the way; what it finds goes to
 * standard output. The others:
 *
 *   launch SPARK_HOME MASTER MODE WHEN_TO_STOP APPLICATION ARGUMENT...
 *                 an application in a process of its own, followed to its end; WHEN_TO_STOP: a state
 *                 or a file on which it is stopped, or never
 *   in-process MASTER SECRET JAR
 *                 the same in this JVM; JAR: of this program
 *   second MASTER SECRET
 *                 a context on this machine alone, then one on the cluster
 *   sum           an application
 */
object Embedding {
  private val LimitS = 240L

  def main(arguments: Array[String]): Unit = arguments.toList match {
    case "launch" :: home :: master :: mode :: stopOn :: application :: its =>
      val launcher = new SparkLauncher().setSparkHome(home).setMaster(master).setDeployMode(mode)
        .setAppResource(application).addAppArgs(its: _*)
      follow(sized(launcher), stopOn)
    case "in-process" :: master :: secret :: jar :: Nil =>
      val launcher = new InProcessLauncher().setMaster(master).setAppResource(jar)
        .setMainClass("org.example.Embedding").addAppArgs("sum")
        .setConf("spark.authenticate", "true").setConf("spark.authenticate.secret", secret)
      follow(sized(launcher), "never")
    case "second" :: master :: secret :: Nil =>
      sum(new SparkConf().setMaster("local[1]").setAppName("first"))
      val conf = new SparkConf().setMaster(master).setAppName("second")
        .set("spark.executor.memory", "512m").set("spark.executor.instances", "1")
        .setJars(SparkContext.jarOfClass(getClass).toSeq)
      if (secret != "none") {
        conf.set("spark.authenticate", "true").set("spark.authenticate.secret", secret)
      }
      sum(conf)
    case _ => sum(new SparkConf().setAppName("sum"))
  }

  private def sum(conf: SparkConf): Unit = {
    val context = new SparkContext(conf.set("spark.ui.enabled", "false"))
    val total = context.parallelize(1 to 100, 2).map(number => number.toLong * number).reduce(_ + _)
    println(s"SUM ${context.master} $total")
    context.stop()
  }

  private def sized[T <: AbstractLauncher[T]](launcher: AbstractLauncher[T]): AbstractLauncher[T] =
    Seq("spark.executor.memory" -> "512m", "spark.driver.memory" -> "512m",
      "spark.executor.instances" -> "1", "spark.ui.enabled" -> "false")
      .foldLeft[AbstractLauncher[T]](launcher) { case (one, (name, value)) => one.setConf(name, value) }

  private def follow[T <: AbstractLauncher[T]](launcher: AbstractLauncher[T], stopOn: String): Unit = {
    val seen = new ConcurrentLinkedQueue[String]()
    val over = new CountDownLatch(1)
    val handle = launcher.startApplication(new SparkAppHandle.Listener {
      override def stateChanged(handle: SparkAppHandle): Unit = {
        val state = handle.getState
        seen.add(state.toString)
        if (state.toString == stopOn) handle.stop()
        if (state.isFinal) over.countDown()
      }
      override def infoChanged(handle: SparkAppHandle): Unit = ()
    })
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LimitS)
    var stopped = false
    while (!over.await(100, TimeUnit.MILLISECONDS) && System.nanoTime() < deadline) {
      if (!stopped && new File(stopOn).exists()) {
        stopped = true
        handle.stop()
      }
    }
    if (over.getCount > 0) handle.kill()
    println(s"STATES ${seen.asScala.mkString(" ")}")
    println(s"ID ${handle.getAppId}")
    System.exit(0)
  }
}
