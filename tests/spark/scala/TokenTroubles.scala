package org.apache.spark.scheduler.cluster.hrm

import org.apache.spark.{SparkConf, SparkException}

/** What HRM does about tokens that could not be obtained: how soon the next try is, and what the user reads. */
object TokenTroubles {
  private val RetryWait = "spark.security.credentials.retryWait"

  def main(arguments: Array[String]): Unit = {
    def prepared(settings: (String, String)*): SparkConf = {
      val conf = new SparkConf(false).setAll(settings)
      Kerberos.prepare(conf)
      conf
    }
    val tokens = "spark.security.directCredentialProviders.enabled" -> "true"
    LockStress.check(prepared(tokens).get(RetryWait) == "1m", "the next try is an hour later")
    LockStress.check(prepared(tokens, RetryWait -> "7m").get(RetryWait) == "7m", "the user's setting is lost")
    LockStress.check(!prepared().contains(RetryWait), "an application without tokens gets a setting for them")
    val noRealm = new IllegalArgumentException("Can't get Kerberos realm", new SparkException("no krb5.conf"))
    println(Kerberos.noTokens(noRealm, "see the log"))
    println(Kerberos.noTokens(new SparkException("the KDC is away"), "see the log"))
    Runtime.getRuntime.halt(0)
  }
}
