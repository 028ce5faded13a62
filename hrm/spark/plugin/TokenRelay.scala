package org.apache.spark.scheduler.cluster.hrm

import java.io.InputStreamReader
import java.nio.charset.StandardCharsets.UTF_8
import java.security.PrivilegedExceptionAction
import java.util.Properties

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.security.{Credentials, UserGroupInformation}

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.deploy.security.HadoopDelegationTokenManager

/**
 * For `hrm submit`: obtains the delegation tokens of a driver that will run on a node, with the submitter's ticket.
 *
 * Standard input has Spark's settings as properties; an argument names the user to act for. Standard output gets the
 * tokens, as Hadoop writes them to a file, and nothing else.
 */
private[hrm] object TokenRelay {

  def main(arguments: Array[String]): Unit = {
    val out = System.out
    System.setOut(System.err) // a library that prints must not spoil the tokens
    try {
      val conf = settings()
      val tokens = obtain(conf, arguments.headOption)
      out.write(SparkHadoopUtil.get.serialize(tokens))
      out.flush()
      System.exit(0)
    } catch {
      case e: SparkException =>
        System.err.println(e.getMessage)
        System.exit(1)
      case NonFatal(e) =>
        e.printStackTrace()
        val trace = "try klist, and spark-submit in client mode, which shows the whole error"
        System.err.println(s"HRM: ${Kerberos.noTokens(e, trace)}")
        System.exit(1)
    }
  }

  /** Also as Java's properties, where Spark's own code for Hadoop looks for them. */
  private def settings(): SparkConf = {
    val given = new Properties()
    given.load(new InputStreamReader(System.in, UTF_8))
    given.asScala.foreach { case (name, value) => System.setProperty(name, value) }
    new SparkConf()
  }

  private def obtain(conf: SparkConf, proxy: Option[String]): Credentials = {
    val hadoop = SparkHadoopUtil.get.newConfiguration(conf)
    UserGroupInformation.setConfiguration(hadoop)
    Kerberos.prepare(conf)
    val user = UserGroupInformation.getCurrentUser
    val acting = proxy.map(UserGroupInformation.createProxyUser(_, user)).getOrElse(user)
    val tokens = acting.getCredentials
    val manager = new HadoopDelegationTokenManager(conf, Kerberos.hadoopSettings(hadoop), null)
    acting.doAs(new PrivilegedExceptionAction[Unit] {
      def run(): Unit = manager.obtainDelegationTokens(tokens)
    })
    manager.stop()
    Kerberos.checkTokens(tokens)
    tokens
  }
}
