package org.apache.spark.scheduler.cluster.hrm

import java.nio.file.{Files, Path}
import java.security.PrivilegedExceptionAction
import java.util.{Map => JMap}
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.MILLISECONDS

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.security.UserGroupInformation

import org.apache.spark.{HeartbeatReceiver, SparkConf, SparkContext, SparkEnv}
import org.apache.spark.rpc.RpcEnv
import org.apache.spark.sql.SparkSession
import org.apache.spark.util.Utils

/**
 * What a JVM does that is started ahead of demand: it rehearses a small application of this process only, and takes
 * over an environment that it was not started with. Executors (WarmExecutor) and drivers (WarmDriver) share it.
 */
private[hrm] object WarmJvm {
  private val Garbage = 32L << 20

  /**
   * Runs `body`, then ends this program if it fails, whatever it is, such as a class that does not link or a full
   * heap. As a separate user: a context leaves its secret with the user that it runs as. In a separate thread: a
   * session is inherited by the threads that its own one starts later.
   */
  def apart(body: => Unit): Unit = {
    val rehearsal = new PrivilegedExceptionAction[Unit] { def run(): Unit = sparingly(body) }
    val thread = new Thread(() =>
      try UserGroupInformation.createRemoteUser("rehearsal").doAs(rehearsal) catch {
        case error: Throwable =>
          error.printStackTrace()
          System.exit(1)
      }, "rehearsal")
    thread.start()
    thread.join()
  }

  def fields(node: JsonNode): Seq[(String, String)] =
    node.fieldNames().asScala.map(name => name -> node.get(name).asText()).toSeq

  /** The environment of System.getenv and every child process: Java copies it once, at its start. */
  def environment(): JMap[String, String] = {
    val shown = System.getenv()
    val field = shown.getClass.getDeclaredField("m")
    field.setAccessible(true)
    field.get(shown).asInstanceOf[JMap[String, String]]
  }

  /** From now on this is another's environment and these are its properties. */
  def takeOver(order: JsonNode): Unit = {
    fields(order.get("properties")).foreach { case (name, value) => System.setProperty(name, value) }
    val own = environment()
    own.clear()
    fields(order.get("environment")).foreach { case (name, value) => own.put(name, value) }
    Utils.clearLocalRootDirs()
  }

  /**
   * A context of this process only: a job with a shuffle, an authenticated connection, queries. Its files are below
   * `place`; `settings` come on top of its own.
   */
  def rehearse(place: Path, settings: (String, String)*): Unit = {
    val conf = new SparkConf(false)
      .setMaster("local[1]").setAppName("rehearsal")
      .set("spark.authenticate", "true")
      .set("spark.ui.enabled", "false")
      .set("spark.driver.host", "127.0.0.1")
      .set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.buffer.pageSize", "1m")
      // Whatever the node's settings name: a rehearsal stays on this machine.
      .set("spark.hadoop.fs.defaultFS", "file:///")
      .set("spark.sql.warehouse.dir", place.resolve("warehouse").toUri.toString)
      .set("spark.sql.shuffle.partitions", "2")
    val context = new SparkContext(conf.setAll(settings))
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
      rehearseSql(place)
    } finally context.stop()
  }

  /** Collects early and often, because a heap does not return memory that it has once touched. */
  private def sparingly(body: => Unit): Unit = {
    val heap = Runtime.getRuntime
    val over = new CountDownLatch(1)
    val collector = new Thread(() => {
      var kept = 0L
      while (!over.await(20, MILLISECONDS)) {
        if (heap.totalMemory() - heap.freeMemory() > kept + Garbage) {
          System.gc()
          kept = heap.totalMemory() - heap.freeMemory()
        }
      }
      System.gc()
    }, "rehearsal-collector")
    collector.start()
    try body finally {
      over.countDown()
      collector.join()
    }
  }

  /** What executors do for most queries: generated code, a shuffle, cached columns, files. */
  private def rehearseSql(directory: Path): Unit = {
    val session = SparkSession.builder().getOrCreate()
    val place = Files.createTempDirectory(directory, "rehearsal")
    try {
      val rows = session.range(0, 40, 1, 2)
        .selectExpr("id", "id % 3 as key", "concat_ws(' ', id, id % 5) as text")
      rows.write.parquet(s"$place/parquet")
      rows.select("text").write.text(s"$place/text")
      val parts = session.read.text(s"$place/text").selectExpr("explode(split(value, ' ')) as part")
      val counts = parts.groupBy("part").count().cache()
      require(counts.selectExpr("sum(count)", "count(*)").collect()(0).getLong(0) == 80L)
      require(counts.orderBy("part").limit(5).collect().length == 5)
      val read = session.read.parquet(s"$place/parquet")
      val sums = read.groupBy("key").agg("id" -> "sum", "id" -> "avg")
      require(read.join(sums, "key").where("id > 9").collect().length == 30)
    } finally Utils.deleteRecursively(place.toFile)
  }
}
