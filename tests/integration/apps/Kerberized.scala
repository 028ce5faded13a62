package of.the.tests

import java.io.{File, PrintWriter}
import java.security.PrivilegedExceptionAction
import java.util.concurrent.atomic.AtomicInteger

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.io.Text
import org.apache.hadoop.security.{Credentials, UserGroupInformation}
import org.apache.hadoop.security.token.{Token, TokenIdentifier}
import org.ietf.jgss.{GSSManager, Oid}

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.security.HadoopDelegationTokenProvider

/**
 * A service that gives out passes, which live for 60 s, to those who prove by Kerberos who they are: the KDC is asked
 * for a ticket to its door. It has no server, as no executor needs more than to show that it has a pass.
 */
class PassProvider extends HadoopDelegationTokenProvider {
  override def serviceName: String = "pass"

  override def delegationTokensRequired(conf: SparkConf, hadoop: Configuration): Boolean =
    UserGroupInformation.isSecurityEnabled

  override def obtainDelegationTokens(
      hadoop: Configuration, conf: SparkConf, credentials: Credentials): Option[Long] = {
    val user = UserGroupInformation.getCurrentUser
    val real = Option(user.getRealUser).getOrElse(user)
    real.doAs(new PrivilegedExceptionAction[Unit] { def run(): Unit = Pass.knock() })
    val text = s"${user.getShortUserName}-${real.getShortUserName}-${Pass.issued.incrementAndGet()}"
    credentials.addToken(Pass.Name, new Token[TokenIdentifier](text.getBytes, Array[Byte](7), Pass.Name, Pass.Name))
    Some(System.currentTimeMillis() + 60000)
  }
}

object Pass {
  val Name = new Text("pass")
  val issued = new AtomicInteger

  def knock(): Unit = {
    val manager = GSSManager.getInstance()
    val door = manager.createName("door/127.0.0.1@TEST.HRM", new Oid("1.2.840.113554.1.2.2.1"))
    val context = manager.createContext(door, new Oid("1.2.840.113554.1.2.2"), null, 60)
    context.initSecContext(Array.emptyByteArray, 0, 0)
    context.dispose()
  }

  /** The pass of whoever runs this; empty: none. */
  def held(): String = Option(UserGroupInformation.getCurrentUser.getCredentials.getToken(Name))
    .map(token => new String(token.getIdentifier)).getOrElse("")
}

/** Arguments: the application's name, a file for what was seen, how many different passes to wait for. */
object Kerberized {
  def main(arguments: Array[String]): Unit = {
    val sc = new SparkContext(new SparkConf().setAppName(arguments(0)))
    val deadline = System.nanoTime() + 60L * 1000 * 1000 * 1000
    var seen = Vector.empty[String]
    while (seen.distinct.size < arguments(2).toInt && System.nanoTime() < deadline) {
      seen ++= sc.parallelize(1 to 2, 2).map { _ => Thread.sleep(100); Pass.held() }.collect()
    }
    val file = new PrintWriter(new File(arguments(1)))
    val lines = Seq(sc.sparkUser, Pass.held()) ++ seen.distinct
    try lines.foreach(line => file.println(line)) finally file.close()
    sc.stop()
  }
}
