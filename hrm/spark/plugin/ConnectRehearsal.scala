package org.apache.spark.scheduler.cluster.hrm

import java.net.InetSocketAddress
import java.util.UUID
import java.util.concurrent.TimeUnit
import java.util.concurrent.TimeUnit.MILLISECONDS

import org.apache.spark.SparkException
import org.apache.spark.util.Utils

/**
 * What a client of Connect does first, done by the server to itself, over its own port: settings, the plan of a
 * query, queries with a shuffle, a join and a sort whose rows come back as Arrow batches, a temporary view.
 *
 * The requests are texts of protobuf, which the classes of the server's own jar parse. Each pass has a session of
 * its own, which the server releases, with all in it, at the end. The first pass loads classes, the others are for
 * Java's compilers.
 */
private[hrm] final class ConnectRehearsal(address: InetSocketAddress, token: Option[String]) {
  import ConnectRehearsal._
  import ConnectService.{call, callStatic}

  /** Runs one pass, and more while they are cheap; throws what a request fails with. */
  def run(limitMs: Long): Unit = {
    val begunNs = System.nanoTime()
    val deadlineNs = begunNs + MILLISECONDS.toNanos(limitMs)
    val enoughNs = begunNs + MILLISECONDS.toNanos(EnoughMs)
    val channel = call(call(
      callStatic(shaded("grpc.netty.NettyChannelBuilder"), "forAddress", address), "usePlaintext"), "build")
    try {
      val stub = authenticated(callStatic(
        Utils.classForName[AnyRef](s"$Proto.SparkConnectServiceGrpc"), "newBlockingStub", channel))
      pass(stub, deadlineNs)
      (2 to PassesMax).foreach(_ => if (System.nanoTime() < enoughNs) pass(stub, deadlineNs))
    } finally call(channel, "shutdownNow")
  }

  private def pass(stub: AnyRef, deadlineNs: Long): Unit = {
    val who = s"""session_id: "${UUID.randomUUID()}" user_context { user_id: "hrm" } client_type: "hrm""""
    try Requests.foreach { case (method, request) => send(stub, method, s"$who $request", deadlineNs) }
    finally send(stub, "releaseSession", who, System.nanoTime() + MILLISECONDS.toNanos(ReleaseLimitMs))
  }

  private def send(stub: AnyRef, method: String, text: String, deadlineNs: Long): Unit = {
    val leftMs = TimeUnit.NANOSECONDS.toMillis(deadlineNs - System.nanoTime())
    if (leftMs <= 0) throw new SparkException("the rehearsal took too long; see whether it has executors: hrm app why")
    val limited = call(stub, "withDeadlineAfter", Long.box(leftMs), MILLISECONDS)
    call(limited, method, parsed(s"${method.capitalize}Request", text)) match {
      case responses: java.util.Iterator[_] => responses.forEachRemaining(_ => ())
      case _ => ()
    }
  }

  private def parsed(message: String, text: String): AnyRef = {
    val builder = callStatic(Utils.classForName[AnyRef](s"$Proto.$message"), "newBuilder")
    callStatic(shaded("protobuf.TextFormat"), "merge", text, builder)
    call(builder, "build")
  }

  private def authenticated(stub: AnyRef): AnyRef = token.fold(stub) { secret =>
    val metadata = shaded("grpc.Metadata")
    val key = callStatic(
      shaded("grpc.Metadata$Key"), "of", "Authorization", metadata.getField("ASCII_STRING_MARSHALLER").get(null))
    val headers = metadata.getConstructor().newInstance().asInstanceOf[AnyRef]
    call(headers, "put", key, s"Bearer $secret")
    val attaching = callStatic(shaded("grpc.stub.MetadataUtils"), "newAttachHeadersInterceptor", headers)
    val interceptors = java.lang.reflect.Array.newInstance(shaded("grpc.ClientInterceptor"), 1)
    java.lang.reflect.Array.set(interceptors, 0, attaching)
    call(stub, "withInterceptors", interceptors)
  }
}

private[hrm] object ConnectRehearsal {
  private val Proto = "org.apache.spark.connect.proto"
  private val PassesMax = 3
  private val EnoughMs = 45000L
  private val ReleaseLimitMs = 5000L

  private def shaded(name: String): Class[AnyRef] = Utils.classForName[AnyRef](s"org.sparkproject.connect.$name")

  // Two partitions each: of one, Spark makes no shuffle.
  private val Shuffle =
    "SELECT a.key, count(*) AS many, sum(b.id) AS total FROM (SELECT id, id % 7 AS key FROM range(0, 200, 1, 2)) a " +
      "JOIN range(0, 200, 1, 2) b ON a.id = b.id GROUP BY a.key ORDER BY total DESC LIMIT 5"
  private val Sorted = "SELECT id % 7 AS key, avg(id) AS mean FROM range(0, 200, 1, 2) GROUP BY 1 ORDER BY 1"
  private val Range = "range { start: 0 end: 100 step: 1 num_partitions: 2 }"
  private val Sum = s"""project { input { common { plan_id: 1 } $Range } expressions { expression_string { expression:
    "sum(id)" } } }"""
  private val Grouped = s"""aggregate { input { common { plan_id: 2 } $Range } group_type: GROUP_TYPE_GROUPBY
    grouping_expressions { expression_string { expression: "id % 3" } }
    aggregate_expressions { unresolved_function { function_name: "sum" arguments {
      unresolved_attribute { unparsed_identifier: "id" } } } } }"""
  private val View = "hrm_rehearsal"

  private def root(relation: String): String = s"plan { root { common { plan_id: 9 } $relation } }"
  private def sql(query: String): String = s"""sql { query: "$query" }"""
  private def command(text: String): String = s"plan { command { $text } }"

  /** In the order of a client's: (method of the service, what follows the session in its request). */
  private val Requests: Seq[(String, String)] = Seq(
    "config" -> """operation { get_option { keys: "spark.sql.session.timeZone" } }""",
    "analyzePlan" -> "spark_version { }",
    "executePlan" -> command(s"sql_command { input { common { plan_id: 3 } ${sql(Shuffle)} } }"),
    "executePlan" -> root(sql(Shuffle)),
    "executePlan" -> root(sql(Sorted)),
    "executePlan" -> root(Sum),
    "analyzePlan" -> s"schema { ${root(Grouped)} }",
    "executePlan" -> root(Grouped),
    "executePlan" -> root(s"show_string { input { common { plan_id: 4 } $Range } num_rows: 5 truncate: 20 }"),
    "executePlan" -> command(
      s"""create_dataframe_view { input { common { plan_id: 5 } $Range } name: "$View" replace: true }"""),
    "executePlan" -> root(sql(s"SELECT max(id) FROM $View")))
}
