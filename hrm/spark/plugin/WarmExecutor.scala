package org.apache.spark.scheduler.cluster.hrm

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths}
import java.util.Collections

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.ObjectMapper

import org.apache.spark.executor.CoarseGrainedExecutorBackend

/**
 * An executor started ahead of demand: it rehearses what executors do, signals that it is ready by a
 * file, and waits for one line that assigns it to an executor of an application.
 *
 * The line comes on standard input, which no other process can read, as it carries the application's
 * secret: {"environment": {...}, "properties": {...}, "arguments": [...]}. From then on this is a
 * CoarseGrainedExecutorBackend like any other. No line, no executor: the end of input ends it.
 */
object WarmExecutor {
  private val ReadyFile = "warm.ready"

  def main(args: Array[String]): Unit = {
    WarmJvm.apart {
      val probe = """{"environment": {"a": "b"}, "properties": {}, "arguments": ["c"]}"""
      WarmJvm.fields(new ObjectMapper().readTree(probe).get("environment"))
      // Typed, because Scala 2.12 infers nothing here.
      Collections.unmodifiableMap[String, String](WarmJvm.environment()).size()
      Class.forName("org.apache.spark.executor.CoarseGrainedExecutorBackend$Arguments")
      WarmJvm.rehearse(Paths.get("").toAbsolutePath)
    }
    Files.createFile(Paths.get(ReadyFile))
    val line = new String(System.in.readAllBytes(), UTF_8)
    if (line.isEmpty) System.exit(0)
    val order = new ObjectMapper().readTree(line)
    WarmJvm.takeOver(order)
    CoarseGrainedExecutorBackend.main(order.get("arguments").asScala.map(_.asText()).toArray)
  }
}
