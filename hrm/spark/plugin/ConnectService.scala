package org.apache.spark.scheduler.cluster.hrm

import java.lang.reflect.{InvocationTargetException, Method, Modifier}
import java.net.{InetAddress, InetSocketAddress}
import java.util.concurrent.TimeUnit.MILLISECONDS

import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.util.Utils

/**
 * Spark's Connect service in this JVM, by its classes' names.
 *
 * Not every Spark has these classes among its jars (3.5 takes them from --packages), and the plugin is compiled
 * against those jars. So they are looked up as the program runs; what is missing is an exception here.
 */
private[hrm] final class ConnectService(port: Int, bindingHost: Option[String]) {
  import ConnectService._

  /** Where this process itself reaches it. */
  def address: InetSocketAddress = {
    val host = bindingHost.map(InetAddress.getByName).filterNot(_.isAnyLocalAddress)
    new InetSocketAddress(host.getOrElse(InetAddress.getLoopbackAddress), port)
  }

  /** Is a session open? Where this Spark does not list them: no, and its events alone are signs of a client. */
  def hasSessions: Boolean =
    try call(call(module, "sessionManager"), "listActiveSessions").asInstanceOf[Iterable[_]].nonEmpty
    catch { case NonFatal(_) => false }

  def stop(): Unit = call(module, "stop", None, None)
}

private[hrm] object ConnectService {
  val EventPrefix = "org.apache.spark.sql.connect.service."
  private val Service = "org.apache.spark.sql.connect.service.SparkConnectService$"
  private val Address = "spark.connect.grpc.binding.address"
  private val TokenSetting = "spark.connect.authenticate.token"
  private val TokenVariable = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
  private val PollMs = 50L

  def token(conf: SparkConf): Option[String] =
    conf.getOption(TokenSetting).orElse(sys.env.get(TokenVariable)).filter(_.nonEmpty)

  /** The service, once it accepts connections; None: not within the limit, or the program is over before. */
  def awaitStart(limitMs: Long, isOver: => Boolean): Option[ConnectService] = {
    val begunNs = System.nanoTime()
    var port = localPort()
    while (port <= 0 && !isOver && MILLISECONDS.toNanos(limitMs) > System.nanoTime() - begunNs) {
      Thread.sleep(PollMs)
      port = localPort()
    }
    if (port <= 0) None else Some(new ConnectService(port, bindingHost))
  }

  /** 0: it does not listen yet. */
  private def localPort(): Int =
    try if (call(module, "server") == null) 0 else call(module, "localPort").asInstanceOf[Int]
    catch { case NonFatal(_) => 0 }

  private def bindingHost: Option[String] = Option(org.apache.spark.SparkEnv.get).flatMap(_.conf.getOption(Address))

  private def module: AnyRef = Utils.classForName[AnyRef](Service).getField("MODULE$").get(null)

  /** Calls a method that takes these arguments; its own exception is thrown as it is. */
  def call(target: AnyRef, name: String, arguments: Any*): AnyRef =
    invoke(find(target.getClass, name, arguments, static = false), target, arguments)

  def callStatic(owner: Class[_], name: String, arguments: Any*): AnyRef =
    invoke(find(owner, name, arguments, static = true), null, arguments)

  private def invoke(method: Method, target: AnyRef, arguments: Seq[Any]): AnyRef =
    try {
      method.setAccessible(true) // public, of a class that may not be
      method.invoke(target, arguments.map(_.asInstanceOf[AnyRef]): _*)
    } catch { case e: InvocationTargetException => throw e.getCause }

  private def find(owner: Class[_], name: String, arguments: Seq[Any], static: Boolean): Method =
    owner.getMethods.find { method =>
      method.getName == name && Modifier.isStatic(method.getModifiers) == static &&
      method.getParameterCount == arguments.length &&
      method.getParameterTypes.zip(arguments).forall { case (wanted, given) => fits(wanted, given) }
    }.getOrElse(throw new NoSuchMethodException(s"${owner.getName}.$name"))

  private def fits(wanted: Class[_], given: Any): Boolean =
    wanted.isInstance(given) || (wanted == java.lang.Long.TYPE && given.isInstanceOf[java.lang.Long]) ||
      (wanted == java.lang.Boolean.TYPE && given.isInstanceOf[java.lang.Boolean])

  def reason(error: Throwable): String = Option(error.getMessage).filter(_.nonEmpty).getOrElse(error.toString)
}
