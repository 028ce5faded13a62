package org.apache.spark.scheduler.cluster.hrm

import java.io.{File, IOException}
import java.net.URI

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.{Credentials, UserGroupInformation}

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.internal.config

/**
 * Applications whose Hadoop settings demand Kerberos.
 *
 * The driver alone has a ticket, or logs in from a keytab. Executors get delegation tokens from it, by Spark's own
 * HadoopDelegationTokenManager: obtained before the first executor is requested, and again before they expire. This
 * is what HRM adds: the driver's login, and reasons where it could not work, before tasks fail late with errors of
 * the services that they call.
 */
private[hrm] object Kerberos {
  private val Authentication = "hadoop.security.authentication"
  private val Renewer = "yarn.resourcemanager.principal"
  private val DirectProviders = "spark.security.directCredentialProviders.enabled"
  private val RetryWait = "spark.security.credentials.retryWait"
  private val NoRealm = "Can't get Kerberos realm"
  private val Simple = s"spark.hadoop.$Authentication=simple"

  /** Whether executors get tokens from the driver, which must have them first. */
  def givesTokens(conf: SparkConf): Boolean =
    UserGroupInformation.isSecurityEnabled || conf.getBoolean(DirectProviders, defaultValue = false)

  /**
   * Logs in from the keytab, unless the environment has done it already (see spark-env.sh), and throws where executors
   * would have neither tokens nor a driver that can obtain some.
   */
  def prepare(conf: SparkConf): Unit = {
    // Spark's default is 1 h: a KDC that is away for moments at a renewal would leave tokens to expire meanwhile.
    if (givesTokens(conf)) conf.setIfMissing(RetryWait, "1m")
    val named = conf.get(config.PRINCIPAL).zip(conf.get(config.KEYTAB)).headOption
    if (named.isEmpty && (conf.get(config.PRINCIPAL).isDefined || conf.get(config.KEYTAB).isDefined)) {
      refuse("--principal and --keytab (spark.kerberos.*) belong together; give both, or none")
    }
    if (UserGroupInformation.isSecurityEnabled) {
      named.foreach { case (principal, keytab) => login(principal, path(keytab)) }
      checkCredentials()
    } else if (named.isDefined) {
      refuse(s"--principal and --keytab (spark.kerberos.*) would have no effect, as Hadoop's settings do not demand " +
        s"Kerberos; set HADOOP_CONF_DIR to the directory of a core-site.xml that does ($Authentication), or leave " +
        "both out")
    }
  }

  /** In cluster mode it is written as local:/path. */
  private def path(keytab: String): String =
    Try(new URI(keytab)).toOption.filter(_.getScheme != null).map(_.getPath).getOrElse(keytab)

  private def login(principal: String, keytab: String): Unit = {
    if (!new File(keytab).canRead) {
      val reader = System.getProperty("user.name")
      refuse(s"the keytab $keytab cannot be read on this machine by $reader; put it there, or name another with " +
        "--keytab")
    }
    try {
      val user = UserGroupInformation.getLoginUser
      val logged = user.isFromKeytab && (user.getUserName + "@").startsWith(s"$principal@")
      if (!logged) UserGroupInformation.loginUserFromKeytab(principal, keytab)
    } catch {
      case e: IOException =>
        refuse(s"no login as $principal from the keytab $keytab: ${e.getMessage}; compare `klist -kt $keytab` with " +
          "the principal, and try `kinit -kt`", e)
    }
  }

  private def checkCredentials(): Unit = {
    val user = UserGroupInformation.getCurrentUser
    val real = Option(user.getRealUser).getOrElse(user)
    if (!real.hasKerberosCredentials && isEmpty(user.getCredentials)) {
      refuse(s"Hadoop's settings demand Kerberos ($Authentication in core-site.xml), and this driver has neither a " +
        "ticket nor tokens, so executors would reach no service that wants Kerberos; run kinit first, or give " +
        s"--principal and --keytab; for an application that uses no such service: spark-submit --conf $Simple")
    }
  }

  private def isEmpty(tokens: Credentials): Boolean = tokens.numberOfTokens + tokens.numberOfSecretKeys == 0

  /** A driver on a node would be refused without any. */
  def checkTokens(tokens: Credentials): Unit = if (isEmpty(tokens)) {
    refuse("no service has given delegation tokens; name the file systems in " +
      "spark.kerberos.access.hadoopFileSystems, and see spark.security.credentials.*.enabled; for an application " +
      s"that uses no service with Kerberos: spark-submit --conf $Simple")
  }

  /** The reason of a failure of Spark's while it obtained tokens, whose `trace` the user finds where that says. */
  def noTokens(cause: Throwable, trace: String): String = {
    val causes = Iterator.iterate(cause)(_.getCause).takeWhile(_ != null).map(x => String.valueOf(x.getMessage))
    val remedy = if (causes.exists(_.contains(NoRealm))) {
      "this machine has no Kerberos configuration with a default_realm: put the site's krb5.conf to /etc/krb5.conf, " +
        "or name it with spark.driver.extraJavaOptions=-Djava.security.krb5.conf=FILE"
    } else trace
    s"no delegation tokens could be obtained: ${cause.getMessage}; $remedy"
  }

  /**
   * The settings that providers of tokens read. Spark's provider for HDFS demands a renewer by a setting of YARN, which
   * clusters without YARN lack. Spark obtains new tokens and renews none, so any name will do.
   */
  def hadoopSettings(given: Configuration): Configuration = {
    val settings = new Configuration(given)
    if (UserGroupInformation.isSecurityEnabled) {
      settings.setIfUnset(Renewer, UserGroupInformation.getLoginUser.getUserName)
    }
    settings
  }

  /**
   * Executors take over the user's identity before they have the driver's settings. It also says to the node that a
   * JVM which has settled its identity already is none for this application.
   */
  def javaOptions(conf: SparkConf): Seq[String] = {
    val value = if (UserGroupInformation.isSecurityEnabled) Some("kerberos")
    else conf.getOption(s"spark.hadoop.$Authentication")
    value.map(each => s"-Dspark.hadoop.$Authentication=$each").toSeq
  }

  private def refuse(why: String, cause: Throwable = null): Nothing = throw new SparkException(s"HRM: $why", cause)
}
