package org.apache.spark.deploy

import java.util.concurrent.ConcurrentHashMap

import scala.io.{Codec, Source}

import org.apache.spark.{SecurityManager, SparkConf}
import org.apache.spark.internal.Logging

/**
 * Spark's external shuffle service, with a secret for each application instead of one for all.
 *
 * The agent starts it and sends it lines on standard input: "know APPLICATION SECRET", "forget APPLICATION" (which
 * also removes what its executors left). It ends when that input ends, with the agent. An application unknown to it
 * cannot authenticate, and gets nothing.
 */
object HrmShuffleService extends Logging {

  private final class Secrets(conf: SparkConf) extends SecurityManager(conf) {
    private val known = new ConcurrentHashMap[String, String]()

    def know(application: String, secret: String): Unit = known.put(application, secret)

    def forget(application: String): Unit = known.remove(application)

    /** Null: unknown application; Spark refuses the connection. */
    override def getSecretKey(application: String): String = known.get(application)
  }

  def main(arguments: Array[String]): Unit = {
    val conf = new SparkConf().set("spark.authenticate", "true").set("spark.shuffle.service.enabled", "true")
    val secrets = new Secrets(conf)
    val service = new ExternalShuffleService(conf, secrets)
    service.start()
    println("READY")
    try {
      Source.fromInputStream(System.in)(Codec.UTF8).getLines().map(_.split(' ')).foreach {
        case Array("know", application, secret) => secrets.know(application, secret)
        case Array("forget", application) =>
          service.applicationRemoved(application)
          secrets.forget(application)
        case words => logWarning(s"not understood: a line of ${words.length} words")
      }
    } finally {
      service.stop()
      System.exit(0)
    }
  }
}
