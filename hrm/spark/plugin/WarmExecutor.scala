package org.apache.spark.scheduler.cluster.hrm

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.security.PrivilegedExceptionAction
import java.util.{Collections, Map => JMap}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.{HeartbeatReceiver, SparkConf, SparkContext, SparkEnv}
import org.apache.spark.executor.CoarseGrainedExecutorBackend
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.util.Utils

/**
 * An executor that has started before anybody wants it: it rehearses what executors do, says that it
 * is ready by a file, and waits for one line that tells whose executor it is.
 *
 * The line comes on standard input, which nobody else can read, as it carries the application's
 * secret: {"environment": {...}, "properties": {...}, "arguments": [...]}. From then on this is a
 * CoarseGrainedExecutorBackend like any other. No line, no executor: the end of input ends it.
 */
object WarmExecutor {
  private val ReadyFile = "warm.ready"

  def main(args: Array[String]): Unit = {
    // As somebody of its own: a context leaves its secret with the user that it runs as.
    val rehearsal = new PrivilegedExceptionAction[Unit] { def run(): Unit = rehearse() }
    try UserGroupInformation.createRemoteUser("rehearsal").doAs(rehearsal) catch {
      case NonFatal(error) =>
        error.printStackTrace()
        System.exit(1)
    }
    Files.createFile(Paths.get(ReadyFile))
    val line = new String(System.in.readAllBytes(), UTF_8)
    if (line.isEmpty) System.exit(0)
    val order = new ObjectMapper().readTree(line)
    become(order)
    CoarseGrainedExecutorBackend.main(order.get("arguments").asScala.map(_.asText()).toArray)
  }

  private def become(order: JsonNode): Unit = {
    fields(order.get("properties")).foreach { case (name, value) => System.setProperty(name, value) }
    val environment = writableEnvironment()
    environment.clear()
    fields(order.get("environment")).foreach { case (name, value) => environment.put(name, value) }
    Utils.clearLocalRootDirs()
  }

  private def fields(node: JsonNode): Seq[(String, String)] =
    node.fieldNames().asScala.map(name => name -> node.get(name).asText()).toSeq

  /** What System.getenv and every child process sees: Java copies it once, at its start. */
  private def writableEnvironment(): JMap[String, String] = {
    val shown = System.getenv()
    val field = shown.getClass.getDeclaredField("m")
    field.setAccessible(true)
    field.get(shown).asInstanceOf[JMap[String, String]]
  }

  /** A context of this process alone, one job with a shuffle, one authenticated connection. */
  private def rehearse(): Unit = {
    val probe = """{"environment": {"a": "b"}, "properties": {}, "arguments": ["c"]}"""
    fields(new ObjectMapper().readTree(probe).get("environment"))
    // Typed, for Scala 2.12 infers nothing here.
    Collections.unmodifiableMap[String, String](writableEnvironment()).size()
    Class.forName("org.apache.spark.executor.CoarseGrainedExecutorBackend$Arguments")
    val conf = new SparkConf(false)
      .setMaster("local[1]").setAppName("rehearsal")
      .set("spark.authenticate", "true")
      .set("spark.ui.enabled", "false")
      .set("spark.driver.host", "127.0.0.1")
      .set("spark.driver.bindAddress", "127.0.0.1")
    val context = new SparkContext(conf)
    try {
      val pairs = context.parallelize(1 to 20, 2).map(number => (number % 3, number))
      require(pairs.reduceByKey(_ + _).collect().map(_._2).sum == 210)
      val driver = SparkEnv.get
      val client = RpcEnv.create(
        "rehearsal", "127.0.0.1", 0, context.getConf, driver.securityManager, clientMode = true)
      try client.setupEndpointRef(driver.rpcEnv.address, HeartbeatReceiver.ENDPOINT_NAME)
      finally {
        client.shutdown()
        client.awaitTermination()
      }
    } finally context.stop()
    System.gc()
  }
}
